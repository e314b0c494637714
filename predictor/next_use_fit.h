// Fits the next-use forecaster (predictor/core/next_use_forecaster.h) to recorded routing: one
// ridge regression from the decayed activation pattern of the whole model, and within a token from
// the layers already seen, to the use of every expert. Deterministic; seconds for the sizes
// allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "predictor/core/next_use_forecaster.h"

namespace expertflow {

// One recorded sequence. Chosen experts count from 0 within their layer.
struct FitSequence {
  std::span<const uint16_t> chosen;  // [rows, layers, top_k]
  std::span<const float> weights;    // [rows, layers, top_k]
};

struct NextUseFitOptions {
  int32_t rank = 128;
  int32_t gain_rank = 12;
  // Penalties in rows, on standardised inputs: a slow rate is nearly constant in a sequence, so
  // that there are as few samples of it as sequences.
  double ridge[kForecastFeatures] = {5'000, 20'000, 100'000, 20'000};
  double ridge_layers = 5'000;  // of the layers already seen
  double ridge_own = 100;       // of an expert's own rates
  double own_share = 0.5;       // of its own regression in the forecast
};

inline constexpr int32_t kFitExpertsMax = 2048;  // of all layers: the fit's cost is its cube
inline constexpr size_t kFitRowsMin = 256;

// kInvalidArgument: too few rows, too many experts, or sequences that do not fit the shape.
Result<NextUseModel> FitNextUse(std::span<const int32_t> experts, int32_t top_k,
                                std::span<const FitSequence> sequences,
                                const NextUseFitOptions& options = {});

}  // namespace expertflow
