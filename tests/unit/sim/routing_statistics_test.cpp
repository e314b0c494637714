#include "sim/routing_statistics.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace expertflow {
namespace {

RoutingTrace Drawn(double skew, double common, double persistence, uint64_t seed) {
  SyntheticRouting options;
  options.experts.assign(4, 24);
  options.top_k = 3;
  options.sequences = 40;
  options.tokens = 120;
  options.skew = skew;
  options.common = common;
  options.persistence = persistence;
  options.seed = seed;
  return SynthesizeRouting(options);
}

TEST(RoutingStatisticsTest, SharesAreWhatTheyAreCalled) {
  RoutingTrace trace;
  trace.experts = {8};
  trace.top_k = 2;
  // Two sequences of three tokens.
  trace.chosen = {0, 1, 1, 2, 1, 2, 5, 6, 6, 5, 5, 7};
  trace.sequences = {{0, 3}, {3, 3}};
  const RoutingStatistics measured = MeasureRouting(trace);
  EXPECT_DOUBLE_EQ(measured.repeated, (1 + 2 + 2 + 1) / 8.0);
  // Expert 1 three times and 2 twice, then 5 three times and 6 twice: five of six each.
  EXPECT_DOUBLE_EQ(measured.sequence_quarter, 5 / 6.0);
  EXPECT_DOUBLE_EQ(measured.common_quarter, 6 / 12.0);
}

TEST(RoutingStatisticsTest, WhatWasDrawnIsFoundAgain) {
  for (const auto& [skew, common, persistence] :
       {std::tuple{0.8, 0.3, 0.3}, std::tuple{1.5, 0.6, 0.1}, std::tuple{0.5, 0.5, 0.6}}) {
    const auto fitted = FitRouting(Drawn(skew, common, persistence, 5));
    ASSERT_TRUE(fitted.ok()) << fitted.status().ToString();
    EXPECT_NEAR(fitted->drawn.repeated, fitted->recorded.repeated, 0.01);
    EXPECT_NEAR(fitted->drawn.sequence_quarter, fitted->recorded.sequence_quarter, 0.01);
    EXPECT_NEAR(fitted->drawn.common_quarter, fitted->recorded.common_quarter, 0.02);
    EXPECT_NEAR(fitted->skew, skew, 0.15);
    EXPECT_NEAR(fitted->common, common, 0.15);
    EXPECT_NEAR(fitted->persistence, persistence, 0.03);
  }
}

TEST(RoutingStatisticsTest, ShortSequencesSayTooLittle) {
  RoutingTrace trace = Drawn(0.8, 0.3, 0.3, 1);
  trace.sequences = {{0, 120}, {120, 31}};
  EXPECT_NE(FitRouting(trace).status().message().find("32 tokens"), std::string::npos);
}

}  // namespace
}  // namespace expertflow
