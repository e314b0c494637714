#include "predictor/core/pre_gate_predictor.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/check.h"

namespace expertflow {
namespace {

struct Calibration {
  float scale;
  float bias;
};
// By distance, from 1 on; farther ones use the last.
constexpr std::array<Calibration, 8> kCalibration = {{{0.14F, 0.4F},
                                                      {0.24F, 0.5F},
                                                      {0.32F, 0.6F},
                                                      {0.38F, 0.8F},
                                                      {0.42F, 0.8F},
                                                      {0.48F, 0.9F},
                                                      {0.52F, 0.9F},
                                                      {0.58F, 1.0F}}};
constexpr int32_t kMaxTopK = 64;

// Midway between the k-th and the (k+1)-th largest. REQUIRES: 0 < k < n
float Edge(const float* logits, int32_t n, int32_t k) {
  std::array<float, kMaxTopK + 1> top;
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

float Deviation(const float* logits, int32_t n) {
  double sum = 0;
  double squares = 0;
  for (int32_t e = 0; e < n; ++e) {
    sum += logits[e];
    squares += static_cast<double>(logits[e]) * logits[e];
  }
  const double mean = sum / n;
  return static_cast<float>(std::sqrt(std::max(squares / n - mean * mean, 0.0)));
}

}  // namespace

void PreGatePredictor::Predict(const PredictionRequest& request,
                               std::span<uint32_t> probability_ppm) const {
  const int32_t n = request.experts;
  const int32_t k = request.top_k;
  CHECK(probability_ppm.size() == static_cast<size_t>(n));
  CHECK(k > 0 && k <= kMaxTopK);
  if (k >= n) {
    std::fill(probability_ppm.begin(), probability_ppm.end(),
              request.rows.empty() ? 0u : 1'000'000u);
    return;
  }
  std::fill(probability_ppm.begin(), probability_ppm.end(), 0u);
  const size_t last = kCalibration.size() - 1;
  const auto step = static_cast<size_t>(std::max(request.distance, 1) - 1);
  const Calibration calibration = kCalibration[std::min(step, last)];
  for (int32_t row : request.rows) {
    const float* logits = request.logits + static_cast<ptrdiff_t>(row) * n;
    const float edge = Edge(logits, n, k);
    const float spread = calibration.scale * Deviation(logits, n);
    // Logits that are all equal, infinite or NaN tell nothing.
    if (!(spread > 0) || !std::isfinite(spread) || !std::isfinite(edge)) continue;
    for (int32_t e = 0; e < n; ++e) {
      const float z = (logits[e] - edge) / spread - calibration.bias;
      if (!(z > -7)) continue;  // below 0.1 %
      const float p = 1 / (1 + std::exp(-z));
      uint32_t& any = probability_ppm[static_cast<size_t>(e)];
      any = AnyOfPpm(any, static_cast<uint32_t>(p * 1e6F));
    }
  }
}

}  // namespace expertflow
