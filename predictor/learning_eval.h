// Judges what live predictors learn on a recorded trace: recall of workers that learn alone or
// share what they learn, as they would while the trace's sequences run on them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "predictor/core/hybrid_model.h"
#include "predictor/core/hybrid_predictor.h"
#include "predictor/feature_trace.h"
#include "predictor/hybrid_eval.h"

namespace expertflow {

struct LearningOptions {
  size_t workers = 1;  // sequences go to them in turn
  bool learns = true;
  bool shares = false;  // what they learn is added up, and published to all, between two sequences
  size_t tokens_max = SIZE_MAX;  // whole sequences, from the first
};

// By distance, over all source layers and tokens.
std::array<HybridScore, kPredictDistances> JudgeLearning(
    const std::shared_ptr<const HybridModel>& model, const FeatureTrace& trace,
    const LearningOptions& options);

}  // namespace expertflow
