// How far an expert's router logit lies over the edge between chosen and not chosen. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace expertflow {

inline constexpr int32_t kMarginTopKMax = 64;

// Midway between the k-th and the (k+1)-th largest. REQUIRES: 0 < k < n, k <= kMarginTopKMax
float LogitEdge(const float* logits, int32_t n, int32_t k);
// Standard deviation. REQUIRES: n > 0
float LogitDeviation(const float* logits, int32_t n);

}  // namespace expertflow
