#include "predictor/core/logit_margin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

namespace expertflow {
namespace {

TEST(LogitMarginTest, TheEdgeLiesBetweenTheChosenAndTheOthers) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 300; ++round) {
    const int32_t n = 2 + static_cast<int32_t>(random() % 90);
    const int32_t k = 1 + static_cast<int32_t>(random() % std::min(n - 1, kMarginTopKMax));
    // Often of few values, so that several are equal.
    const bool few = round % 3 == 0;
    std::vector<float> logits;
    for (int32_t i = 0; i < n; ++i) {
      logits.push_back(few ? static_cast<float>(random() % 7) - 3 : normal(random));
    }
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const auto at = static_cast<size_t>(k);
    EXPECT_EQ(LogitEdge(logits.data(), n, k), (sorted[at - 1] + sorted[at]) / 2)
        << "n " << n << ", k " << k;
  }
}

}  // namespace
}  // namespace expertflow
