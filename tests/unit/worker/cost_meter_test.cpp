// A policy is given up when it takes too much of the layers' time, soon when it takes far too much.
#include "worker/cost_meter.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

constexpr double kMost = 0.05;
constexpr int64_t kLayerNs = 40'000;

// The layer, counted from 1, after which it is given up; 0: not within `layers`.
int GivenUpAfter(int layers, int64_t cost_ns, int64_t first_cost_ns) {
  CostMeter meter(kMost);
  for (int i = 1; i <= layers; ++i) {
    if (meter.Add(i == 1 ? first_cost_ns : cost_ns, kLayerNs)) return i;
  }
  return 0;
}

TEST(CostMeterTest, TooMuchShowsAfterAPeriodAndFarTooMuchSoon) {
  EXPECT_EQ(GivenUpAfter(5'000, kLayerNs / 25, 0), 0);    // 4 %
  EXPECT_EQ(GivenUpAfter(5'000, kLayerNs / 12, 0), 512);  // 8 %
  EXPECT_EQ(GivenUpAfter(5'000, kLayerNs / 5, 0), 64);    // 20 %
}

TEST(CostMeterTest, OneInterruptionIsNoReason) {
  // 10 ms at once, of the 20 ms that a period takes.
  EXPECT_EQ(GivenUpAfter(511, kLayerNs / 25, 10'000'000), 0);
}

TEST(CostMeterTest, LayersOfUnknownTimeDoNotCount) {
  CostMeter meter(kMost);
  for (int i = 0; i < 1'000; ++i) EXPECT_FALSE(meter.Add(kLayerNs, 0));
}

TEST(CostMeterTest, SaysWhatThePeriodTook) {
  CostMeter meter(kMost);
  while (!meter.Add(10'000, kLayerNs)) {
  }
  EXPECT_DOUBLE_EQ(meter.share(), 0.25);
  EXPECT_EQ(meter.cost_mean_ns(), 10'000);
  EXPECT_EQ(meter.layer_mean_ns(), kLayerNs);
}

}  // namespace
}  // namespace expertflow
