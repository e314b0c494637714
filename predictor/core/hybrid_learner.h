// What a hybrid predictor learns while it is used: the prior of token ids that are seldom or new,
// and the leaves of the forest. Bounded: rows for so many token ids, leaves as many as they are.
// The owner's predictors share the model and may not be evaluating meanwhile. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "predictor/core/hybrid_predictor.h"

namespace expertflow {

struct HybridLearnerOptions {
  size_t tokens_max = 4096;        // ids with a prior
  uint32_t token_count_max = 100;  // of ids seen oftener than that the prior stays
  float leaf_rate = 0.01f;         // share of an error that the leaves take on
};

class HybridLearner {
 public:
  // REQUIRES: CheckHybridModel(model).ok()
  HybridLearner(const HybridModel& model, const HybridLearnerOptions& options);

  const std::shared_ptr<const HybridModel>& model() const { return shared_; }

  // The token that `predictor` has just ended.
  void LearnToken(int32_t token, const HybridPredictor& predictor);
  // A prediction of the forest with the probe from what routers see: which leaves made it, and what
  // came minus what was predicted.
  void LearnLeaves(std::span<const uint16_t> leaves, float error);

 private:
  const HybridLearnerOptions options_;
  std::shared_ptr<HybridModel> model_;
  std::shared_ptr<const HybridModel> shared_;  // the same
  std::vector<float> used_;                    // [experts of a layer] 1: by the token
};

}  // namespace expertflow
