// Costs that are fitted to measured layers.
#include "sim/measured_times.h"

#include <gtest/gtest.h>

#include <vector>

namespace expertflow {
namespace {

constexpr MeasuredCosts kTrue{.step_begin = 3'000,
                              .layer = 11'000,
                              .layer_row = 700,
                              .layer_context_token = 12,
                              .experts = 2'500,
                              .expert = 4'100,
                              .expert_row = 900,
                              .step_end = 30'000,
                              .step_end_row = 20'000,
                              .chunk_prepare = 500,
                              .chunk_start = 2'000,
                              .chunk_copy = 6'000,
                              .arrival = 3'000,
                              .ranked_slot = 20};
constexpr MeasuredCopy kCopy{.prepare = 500, .start = 2'000, .copy = 6'000};
constexpr double kPolicies = 1'500;  // of kTrue.layer, inside

struct Samples {
  std::vector<MeasuredLayer> layers;
  std::vector<MeasuredStepEnd> ends;
};

Samples Make() {
  Samples samples;
  uint32_t random = 1;
  for (int step = 0; step < 200; ++step) {
    const int32_t rows = 1 + step % 4;
    samples.ends.push_back({rows, static_cast<int64_t>(30'000 + 20'000 * rows)});
    for (int32_t l = 0; l < 3; ++l) {
      random = random * 1664525u + 1013904223u;
      MeasuredLayer layer;
      layer.layer = l;
      layer.rows = rows;
      layer.context = rows * (step / 4 + 1);
      layer.experts = 4 + static_cast<int32_t>(random >> 16) % (4 * rows);
      layer.pairs = 4 * rows;
      layer.chunks = static_cast<int32_t>(random >> 24) % (layer.experts + 1);
      layer.runs = layer.chunks > 0 && layer.chunks < layer.experts ? 2 : 1;
      layer.ranked = layer.chunks > 0 ? 50 + 10 * (step % 3) : 0;
      const MeasuredTimes times(kTrue);
      layer.before_ns =
          times.BeforeExpertsNs(l, rows, layer.context) - static_cast<int64_t>(kPolicies);
      layer.inside_ns = static_cast<int64_t>(
          kPolicies + kTrue.experts * layer.runs + kTrue.expert * layer.experts +
          kTrue.expert_row * layer.pairs + 5'500 * layer.chunks + kTrue.ranked_slot * layer.ranked);
      samples.layers.push_back(layer);
    }
  }
  return samples;
}

void ExpectTrue(const MeasuredCosts& costs) {
  EXPECT_NEAR(costs.step_begin, kTrue.step_begin, 30);
  EXPECT_NEAR(costs.layer, kTrue.layer, 50);
  EXPECT_NEAR(costs.layer_row, kTrue.layer_row, 10);
  EXPECT_NEAR(costs.layer_context_token, kTrue.layer_context_token, 0.5);
  EXPECT_NEAR(costs.experts, kTrue.experts, 50);
  EXPECT_NEAR(costs.expert, kTrue.expert, 20);
  EXPECT_NEAR(costs.expert_row, kTrue.expert_row, 20);
  EXPECT_EQ(costs.chunk_prepare, kTrue.chunk_prepare);
  EXPECT_EQ(costs.chunk_start, kTrue.chunk_start);
  EXPECT_EQ(costs.chunk_copy, kTrue.chunk_copy);
  EXPECT_NEAR(costs.arrival, kTrue.arrival, 30);
  EXPECT_NEAR(costs.ranked_slot, kTrue.ranked_slot, 1);
  EXPECT_NEAR(costs.step_end, kTrue.step_end, 50);
  EXPECT_NEAR(costs.step_end_row, kTrue.step_end_row, 20);
}

TEST(MeasuredTimesTest, TheCostsBehindTheTimesAreFound) {
  const Samples samples = Make();
  const auto costs = FitCosts(samples.layers, samples.ends, kCopy);
  ASSERT_TRUE(costs.ok()) << costs.status().ToString();
  ExpectTrue(*costs);
}

TEST(MeasuredTimesTest, LayersThatWereInterruptedDoNotCount) {
  Samples samples = Make();
  for (size_t i = 0; i < samples.layers.size(); i += 7) {
    samples.layers[i].before_ns += 3'000'000;
    samples.layers[i].inside_ns *= 4;
  }
  for (size_t i = 0; i < samples.ends.size(); i += 5) samples.ends[i].ns += 1'000'000;
  const auto costs = FitCosts(samples.layers, samples.ends, kCopy);
  ASSERT_TRUE(costs.ok()) << costs.status().ToString();
  ExpectTrue(*costs);
}

TEST(MeasuredTimesTest, WhatCannotBeToldApartIsNamed) {
  Samples samples = Make();
  for (MeasuredLayer& layer : samples.layers) layer.chunks = 0;
  EXPECT_NE(FitCosts(samples.layers, samples.ends, kCopy).status().message().find("experts"),
            std::string::npos);
  samples = Make();
  for (MeasuredStepEnd& end : samples.ends) end = {1, 50'000};
  EXPECT_NE(FitCosts(samples.layers, samples.ends, kCopy).status().message().find("end of a step"),
            std::string::npos);
}

}  // namespace
}  // namespace expertflow
