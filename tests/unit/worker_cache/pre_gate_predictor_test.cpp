#include "predictor/core/pre_gate_predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "predictor/core/any_of_ppm.h"
#include "predictor/core/stride_controller.h"

namespace expertflow {
namespace {

std::vector<uint32_t> Predict(const std::vector<float>& logits, int32_t experts, int32_t top_k,
                              const std::vector<int32_t>& rows, int32_t distance = 1) {
  std::vector<uint32_t> ppm(static_cast<size_t>(experts), 7);
  PredictFromPreGate(distance, top_k, rows, logits.data(), ppm);
  return ppm;
}

TEST(PreGatePredictor, FollowsTheLogits) {
  const std::vector<float> logits = {5, 1, 4.5F, 0, -1, 0.5F, -2, 0};
  const auto ppm = Predict(logits, 8, 2, {0});
  for (size_t e = 0; e < 8; ++e) {
    EXPECT_EQ(ppm[e] > 500'000, e == 0 || e == 2) << "expert " << e;
    for (size_t f = 0; f < 8; ++f) {
      if (logits[e] > logits[f]) {
        EXPECT_GE(ppm[e], ppm[f]);
      }
    }
  }
}

TEST(PreGatePredictor, RowsAreCombinedAsAnyOf) {
  const std::vector<float> logits = {3, 0, 1, 2, 0, 3, 1, 2};  // two rows of four experts
  const auto first = Predict(logits, 4, 1, {0});
  const auto second = Predict(logits, 4, 1, {1});
  const auto both = Predict(logits, 4, 1, {0, 1});
  for (size_t e = 0; e < 4; ++e) EXPECT_EQ(both[e], AnyOfPpm(first[e], second[e]));
  EXPECT_EQ(AnyOfPpm(500'000, 500'000), 750'000u);
  EXPECT_EQ(AnyOfPpm(0, 0), 0u);
  EXPECT_EQ(AnyOfPpm(1'000'000, 3), 1'000'000u);
  EXPECT_EQ(Predict(logits, 4, 1, {}), std::vector<uint32_t>(4, 0));
  EXPECT_EQ(Predict(logits, 4, 4, {0}), std::vector<uint32_t>(4, 1'000'000));
}

// The model behind the calibration: the target's logits are the pre-gate's plus noise. Predicted
// and observed inclusion must agree, since byte budgets are spent by these numbers.
TEST(PreGatePredictor, IsCalibratedUnderItsNoiseModel) {
  const struct {
    int32_t distance;
    float noise;
  } cases[] = {{1, 0.253F}, {3, 0.571F}, {8, 1.049F}};
  for (const auto& c : cases) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    double predicted[4] = {};
    double observed[4] = {};
    int count[4] = {};
    double sum = 0;
    const int trials = 3000;
    for (int trial = 0; trial < trials; ++trial) {
      std::vector<float> logits(48);
      std::vector<float> target(48);
      for (size_t e = 0; e < 48; ++e) {
        logits[e] = normal(generator);
        target[e] = logits[e] + c.noise * normal(generator);
      }
      const auto ppm = Predict(logits, 48, 4, {0}, c.distance);
      std::vector<float> sorted = target;
      std::nth_element(sorted.begin(), sorted.begin() + 3, sorted.end(), std::greater<>());
      for (size_t e = 0; e < 48; ++e) {
        sum += ppm[e] * 1e-6;
        const auto bin = std::min<size_t>(ppm[e] / 250'000, 3);
        predicted[bin] += ppm[e] * 1e-6;
        observed[bin] += target[e] >= sorted[3] ? 1 : 0;
        ++count[bin];
      }
    }
    EXPECT_NEAR(sum / trials, 4, 0.5) << "distance " << c.distance;
    for (int b = 0; b < 4; ++b) {
      if (count[b] < 100) continue;
      EXPECT_NEAR(predicted[b] / count[b], observed[b] / count[b], 0.08)
          << "distance " << c.distance << " bin " << b;
    }
  }
}

TEST(PreGatePredictor, UselessLogitsPredictNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Predict({1, 1, 1, 1}, 4, 2, {0}), std::vector<uint32_t>(4, 0));
  EXPECT_EQ(Predict({nan, 1, 2, 3}, 4, 2, {0}), std::vector<uint32_t>(4, 0));
  EXPECT_EQ(Predict({inf, 1, 2, 3}, 4, 2, {0}), std::vector<uint32_t>(4, 0));
}

TEST(FixedStride, NeverChanges) {
  FixedStride stride(3);
  stride.OnLayer({.distinct_experts = 4, .stall_ns = 1'000'000});
  EXPECT_EQ(stride.stride(), 3);
}

}  // namespace
}  // namespace expertflow
