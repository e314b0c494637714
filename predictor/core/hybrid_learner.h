// What a hybrid predictor learns while it is used: the prior of token ids that are seldom or new,
// and the leaves of the forest. The prior is a mean of what was fitted and of what came since; a
// leaf moves by the mean of what the fitted forest left over where it came to that leaf. Both
// follow from sums: those that this learner gathered, and the totals of all workers where they are
// published (learnt_statistics.h). Bounded: rows for so many token ids, leaves as many as they are.
//
// The owner's predictors share the model and may not be evaluating meanwhile. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "predictor/core/hybrid_predictor.h"
#include "predictor/core/learnt_statistics.h"

namespace expertflow {

struct HybridLearnerOptions {
  size_t tokens_max = 4096;        // ids with a prior
  uint32_t token_count_max = 100;  // of ids seen oftener than that the prior stays
  float leaf_weight = 50;          // a fitted leaf counts as so many predictions without a rest
  // A leaf moves by so many times its mean. The forest takes the mean of trees whose leaves overlap
  // in part only, so that once is too little; from twice on, what they have in common would
  // overshoot.
  float leaf_step = 1.5;
};

class HybridLearner {
 public:
  // REQUIRES: CheckHybridModel(model).ok()
  HybridLearner(const HybridModel& model, const HybridLearnerOptions& options);

  const std::shared_ptr<const HybridModel>& model() const { return shared_; }

  // The token that `predictor` has just ended.
  void LearnToken(int32_t token, const HybridPredictor& predictor);
  // A prediction of the forest with the probe from what routers see: which leaves made it, and the
  // correction that would have been right (1 or 0, less what was corrected).
  void LearnLeaves(std::span<const uint16_t> leaves, float correction);
  // Only gathered, for the others.
  void LearnRecall(int32_t distance, const RecallSums& sums);

  // What was gathered since the last batch: its rows of token ids in about as many bytes as
  // `bytes_most`, the others in later batches. Null when there is nothing, and until Adopt() has
  // brought the last batch back; one that is long in coming is returned again.
  std::shared_ptr<const LearntBatch> TakeBatch(size_t bytes_most);
  // The totals of all workers take the place of what is known here, row by row; what they cannot
  // have yet is added. `included`: the latest batch of this learner that they have. An older
  // version than the present one changes nothing, rows that are not of this model are left out.
  // REQUIRES: CheckLearnt(version).ok()
  void Adopt(const LearntVersion& version, uint64_t included);
  uint64_t version() const { return version_; }  // 0: none was adopted

 private:
  // What a token id has used since the fit.
  struct TokenRow {
    int32_t token = 0;
    size_t row = 0;             // in the model's prior
    uint32_t fitted_count = 0;  // of the model, before
    uint32_t count = 0;         // since
    uint32_t gathered = 0;      // of `count`, not in a batch yet
  };

  // The token's index in token_rows_, a new one if need be; SIZE_MAX: there is no room.
  size_t FindOrAdd(int32_t token);
  void RefreshPrior(size_t index);
  void RefreshLeaf(size_t leaf);
  void GatherLeaves(LearntStatistics* statistics);
  void GatherTokens(size_t bytes_most, LearntStatistics* statistics);
  void AdoptLeaves(const LearntVersion& version, const LearntStatistics& under_way);
  void AdoptTokens(const LearntVersion& version, const LearntStatistics& under_way);

  const HybridLearnerOptions options_;
  std::shared_ptr<HybridModel> model_;
  std::shared_ptr<const HybridModel> shared_;  // the same
  const size_t total_;                         // experts of all layers

  // Of each leaf, since the fit, and what of that is not in a batch yet.
  std::vector<float> fitted_leaf_;
  std::vector<uint32_t> leaf_count_, gathered_leaf_count_;
  std::vector<int64_t> leaf_rest_, gathered_leaf_rest_;
  std::vector<uint32_t> gathered_leaves_;  // that are not zero

  std::vector<TokenRow> token_rows_;
  std::vector<uint32_t> row_index_;      // [rows of the prior] in token_rows_, or UINT32_MAX
  std::vector<uint8_t> fitted_prior_;    // [token rows, N] in 1/255
  std::vector<uint16_t> uses_;           // [token rows, N] since the fit
  std::vector<uint8_t> gathered_uses_;   // [token rows, N] of those, not in a batch yet
  std::vector<uint32_t> gathered_rows_;  // in token_rows_, that have some
  std::vector<RecallSums> gathered_recall_;

  std::shared_ptr<const LearntBatch> under_way_;  // null: none
  uint64_t batches_ = 0;
  int32_t waits_ = 0;  // calls of TakeBatch() since it went
  uint64_t version_ = 0;
};

}  // namespace expertflow
