#include "predictor/core/logit_margin.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace expertflow {

float LogitEdge(const float* logits, int32_t n, int32_t k) {
  std::array<float, kMarginTopKMax + 1> top;
  int32_t count = 0;
  for (int32_t e = 0; e < n; ++e) {
    const float value = logits[e];
    if (count == k + 1 && !(value > top[static_cast<size_t>(k)])) continue;
    int32_t at = count < k + 1 ? count++ : k;
    for (; at > 0 && value > top[static_cast<size_t>(at - 1)]; --at) {
      top[static_cast<size_t>(at)] = top[static_cast<size_t>(at - 1)];
    }
    top[static_cast<size_t>(at)] = value;
  }
  return (top[static_cast<size_t>(k - 1)] + top[static_cast<size_t>(k)]) / 2;
}

float LogitDeviation(const float* logits, int32_t n) {
  double sum = 0;
  double squares = 0;
  for (int32_t e = 0; e < n; ++e) {
    sum += logits[e];
    squares += static_cast<double>(logits[e]) * logits[e];
  }
  const double mean = sum / n;
  return static_cast<float>(std::sqrt(std::max(squares / n - mean * mean, 0.0)));
}

}  // namespace expertflow
