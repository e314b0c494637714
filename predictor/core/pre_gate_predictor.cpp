#include "predictor/core/pre_gate_predictor.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/check.h"
#include "predictor/core/any_of_ppm.h"
#include "predictor/core/logit_margin.h"

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
}  // namespace

void PredictFromPreGate(int32_t distance, int32_t top_k, std::span<const int32_t> rows,
                        const float* logits, std::span<uint32_t> probability_ppm) {
  const auto n = static_cast<int32_t>(probability_ppm.size());
  const int32_t k = top_k;
  CHECK(k > 0 && k <= kMarginTopKMax);
  if (k >= n) {
    std::fill(probability_ppm.begin(), probability_ppm.end(), rows.empty() ? 0u : 1'000'000u);
    return;
  }
  std::fill(probability_ppm.begin(), probability_ppm.end(), 0u);
  const size_t last = kCalibration.size() - 1;
  const auto step = static_cast<size_t>(std::max(distance, 1) - 1);
  const Calibration calibration = kCalibration[std::min(step, last)];
  for (int32_t row : rows) {
    const float* of_row = logits + static_cast<ptrdiff_t>(row) * n;
    const float edge = LogitEdge(of_row, n, k);
    const float spread = calibration.scale * LogitDeviation(of_row, n);
    // Logits that are all equal, infinite or NaN tell nothing.
    if (!(spread > 0) || !std::isfinite(spread) || !std::isfinite(edge)) continue;
    for (int32_t e = 0; e < n; ++e) {
      const float z = (of_row[e] - edge) / spread - calibration.bias;
      if (!(z > -7)) continue;  // below 0.1 %
      const float p = 1 / (1 + std::exp(-z));
      uint32_t& any = probability_ppm[static_cast<size_t>(e)];
      any = AnyOfPpm(any, static_cast<uint32_t>(p * 1e6F));
    }
  }
}

}  // namespace expertflow
