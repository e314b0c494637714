// What predictors of one model see of what really comes, as sums: those of several workers add up,
// in any order, to those of one that had seen everything. Workers send them to the coordinator,
// which adds them up (learnt_merge.h) and publishes the totals; a predictor's learner evaluates
// totals (hybrid_learner.h). Plain data. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "predictor/core/live_recall.h"

namespace expertflow {

inline constexpr int64_t kRestUnit = 65536;  // of leaf_rest
inline constexpr float kRestMost = 2;        // a correction is within 1 of 0, and so are leaves

struct LearntStatistics {
  // Leaves of the forest, numbered through its trees, ascending: how many predictions came to each,
  // and the sum of what the fitted forest left over (what came, less what it would have predicted).
  std::vector<uint32_t> leaves;
  std::vector<uint32_t> leaf_count;
  std::vector<int64_t> leaf_rest;  // in 1/kRestUnit

  // Token ids, ascending: how often each was seen, and what it used, as the next `token_experts` of
  // the last two lists.
  std::vector<int32_t> tokens;
  std::vector<uint32_t> token_count;
  std::vector<uint32_t> token_experts;
  std::vector<uint16_t> experts;  // numbered through the layers, ascending for each token
  std::vector<uint16_t> uses;

  std::vector<RecallSums> recall;  // [distances] or empty

  bool empty() const { return leaves.empty() && tokens.empty() && recall.empty(); }
};

// What one worker has learnt since its batch before.
struct LearntBatch {
  uint64_t number = 0;  // 1, 2, ...
  LearntStatistics statistics;
};

// Totals of all workers: the rows that have changed since some version, or all of them.
struct LearntVersion {
  uint64_t version = 0;
  LearntStatistics totals;  // without recall
  // When each row changed last.
  std::vector<uint64_t> leaf_version;
  std::vector<uint64_t> token_version;
  uint32_t pre_gate_distances = 0;  // bit d - 1: the pre-gate is used at distance d
};

// Lists agree in size, rows ascend, sums can come from so many observations. What comes from
// another process is refused before it is used.
Status CheckLearnt(const LearntStatistics& statistics);
Status CheckLearnt(const LearntVersion& version);

}  // namespace expertflow
