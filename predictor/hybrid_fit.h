// Fits the hybrid predictor (predictor/core/hybrid_predictor.h) to a recorded trace with features.
//
// Every fifth sequence is left out of the linear maps and the tables; calibration and forests are
// fitted to those, so that they learn how far the maps are to be trusted on text that these have
// not seen. Deterministic: a trace and a seed give the same model on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "common/status.h"
#include "predictor/core/hybrid_model.h"
#include "predictor/feature_trace.h"

namespace expertflow {

struct HybridFitOptions {
  int32_t width = 96;            // of a context block; at most the hidden size
  int32_t rank = 128;            // of the context
  size_t linear_rows = 120'000;  // tokens that the linear maps are fitted to, at most
  double penalty_rows = 100;
  double context_penalty_rows = 300;
  size_t tokens_max = 2048;  // token ids with a prior: the most frequent
  int32_t token_count_min = 2;
  size_t forest_rows = 1'200'000;  // samples of each forest
  size_t forest_tokens = 10'000;   // that they come from
  int32_t trees = 32;
  int32_t depth = 8;
  uint64_t seed = 1;
  int32_t threads = 1;
};

struct HybridFitReport {
  size_t linear_tokens = 0;
  size_t forest_tokens = 0;
  size_t forest_samples = 0;  // of all forests
};

inline constexpr size_t kHybridFitTokensMin = 1000;

// `progress` (optional) hears what is being done. kInvalidArgument: too little in the trace.
Result<HybridModel> FitHybrid(const FeatureTrace& trace, const HybridFitOptions& options,
                              HybridFitReport* report,
                              const std::function<void(const std::string&)>& progress);

}  // namespace expertflow
