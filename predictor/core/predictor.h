// Which experts a later layer will use: the interface that every predictor implements. The pre-gate
// alone is the fallback (pre_gate_predictor.h); learned predictors correct it from the features
// below (ARCHITECTURE 5). Pure: a result depends on the arguments and the fitted tables only.
#pragma once

#include <cstdint>
#include <span>

#include "common/ids.h"

namespace expertflow {

struct PredictionRequest {
  LayerId source;
  LayerId target;
  int32_t distance = 1;  // target - source, in MoE layers
  int32_t experts = 0;   // of the target layer
  int32_t top_k = 0;
  std::span<const int32_t> rows;  // which rows of the arrays below to predict for
  const float* logits = nullptr;  // [m, experts]: the target's router on the source's residual
  // Features that a predictor may use when they are there.
  std::span<const int32_t> token_ids;  // [m]
  std::span<const int32_t> history;    // [m, history_layers, top_k]: choices of the layers up to
  int32_t history_layers = 0;          // the source, nearest last; -1: none
};

class ExpertPredictor {
 public:
  virtual ~ExpertPredictor() = default;

  // probability_ppm[experts]: of being used by at least one of the rows, in millionths.
  // REQUIRES: probability_ppm.size() == request.experts
  virtual void Predict(const PredictionRequest& request,
                       std::span<uint32_t> probability_ppm) const = 0;
};

// Combines a row's probability into that of the batch: 1 - prod(1 - p).
inline uint32_t AnyOfPpm(uint32_t a_ppm, uint32_t b_ppm) {
  const uint64_t neither = uint64_t{1'000'000 - a_ppm} * (1'000'000 - b_ppm) / 1'000'000;
  return static_cast<uint32_t>(1'000'000 - neither);
}

}  // namespace expertflow
