// The coordinator's copy of what all predictors have learnt: adds up what workers send and counts
// versions of the totals. Sums of whole numbers, so neither the order of arrival nor who saw what
// makes a difference, as long as there is room; where there is none for another token id, it stays
// out. A pure policy, one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/ids.h"
#include "predictor/core/hybrid_model.h"
#include "predictor/core/learnt_statistics.h"

namespace expertflow {

struct LearntMergeOptions {
  size_t tokens_max = 4096;
  size_t uses_max = size_t{4} << 20;  // experts of all token ids
};

class LearntMerge {
 public:
  explicit LearntMerge(const LearntMergeOptions& options) : options_(options) {}

  // Adds a worker's batch. False, and nothing changes, when that batch or a later one of it was
  // there before. REQUIRES: CheckLearnt(batch.statistics).ok()
  bool Add(WorkerId worker, const LearntBatch& batch);
  // Its totals stay; batches of it are not expected any more.
  void Forget(WorkerId worker) { workers_.erase(worker); }

  // What was added since the last version becomes the next one; false when nothing was.
  bool Advance();
  uint64_t version() const { return version_; }
  // The latest batch of the worker that the version has; 0: none.
  uint64_t Included(WorkerId worker) const;
  // The rows of the version that have changed since `version`; all of them since 0.
  // REQUIRES: nothing was added since Advance()
  LearntVersion ChangedSince(uint64_t version) const;

  size_t leaves() const { return leaves_.size(); }
  size_t tokens() const { return tokens_.size(); }
  uint64_t batches() const { return batches_; }           // that were added
  uint64_t tokens_left_out() const { return left_out_; }  // rows, for want of room
  // The version's: bit d - 1 says that the pre-gate is used at distance d.
  uint32_t pre_gate_distances() const { return pre_gate_distances_; }
  // Of all workers' sequences together, with what the next version will have.
  const LiveRecall& recall(int32_t distance) const {
    return recall_[static_cast<size_t>(distance - 1)];
  }

 private:
  struct Worker {
    uint64_t added = 0;  // number of the latest batch
    uint64_t included = 0;
  };
  struct Leaf {
    uint32_t count = 0;
    int64_t rest = 0;
    uint64_t version = 0;
  };
  struct Token {
    uint32_t count = 0;
    uint64_t version = 0;
    // What it used, ascending by expert.
    std::vector<uint16_t> experts;
    std::vector<uint16_t> uses;
  };

  void AddLeaves(const LearntStatistics& statistics);
  void AddTokens(const LearntStatistics& statistics);
  void AddUses(std::span<const uint16_t> experts, std::span<const uint16_t> uses, Token* token);

  const LearntMergeOptions options_;
  uint64_t version_ = 0;
  bool changed_ = false;
  std::map<WorkerId, Worker> workers_;
  std::map<uint32_t, Leaf> leaves_;
  std::map<int32_t, Token> tokens_;
  size_t uses_ = 0;  // experts of all tokens
  // Scratch.
  std::vector<uint16_t> joined_experts_;
  std::vector<uint16_t> joined_uses_;
  std::array<LiveRecall, kPredictDistances> recall_;
  uint32_t pre_gate_distances_ = 0;
  uint64_t batches_ = 0;
  uint64_t left_out_ = 0;
};

}  // namespace expertflow
