// Forecasts of several sequences, joined to ranks.
#include "worker/policy/forecast_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/unit/predictor/random_forecaster.h"

namespace expertflow {
namespace {

constexpr int32_t kLayers = 3;
constexpr int32_t kExperts = 6;
constexpr size_t kTopK = 2;

std::shared_ptr<const NextUseModel> Model() {
  return std::make_shared<NextUseModel>(
      testing::RandomForecaster(std::vector<int32_t>(kLayers, kExperts), 4, 2));
}

// [layers][token] choices, drawn beforehand.
struct Routing {
  Routing(size_t tokens, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int32_t l = 0; l < kLayers; ++l) {
      for (size_t t = 0; t < tokens * kTopK; ++t) {
        chosen[l].push_back(static_cast<uint16_t>(random() % kExperts));
        weights[l].push_back(static_cast<float>(random() % 100) / 200);
      }
    }
  }
  RoutedRow Row(SequenceId sequence, bool prefill, int32_t layer, size_t token) const {
    return {sequence,
            prefill,
            {std::span(chosen[layer]).subspan(token * kTopK, kTopK),
             std::span(weights[layer]).subspan(token * kTopK, kTopK)}};
  }
  std::vector<uint16_t> chosen[kLayers];
  std::vector<float> weights[kLayers];
};

// A token of one sequence through all layers; the distances after the last.
std::vector<uint32_t> Decode(ForecastRanks& ranks, const Routing& routing, SequenceId sequence,
                             size_t token) {
  for (int32_t l = 0; l < kLayers; ++l) {
    const RoutedRow row = routing.Row(sequence, false, l, token);
    ranks.Observe(l, {&row, 1}, kTopK);
  }
  const auto distances = ranks.Distances();
  return {distances.begin(), distances.end()};
}

void Prefill(ForecastRanks& ranks, const Routing& routing, SequenceId sequence, size_t begin,
             size_t end) {
  for (int32_t l = 0; l < kLayers; ++l) {
    std::vector<RoutedRow> rows;
    for (size_t t = begin; t < end; ++t) rows.push_back(routing.Row(sequence, true, l, t));
    ranks.Observe(l, rows, 0);
    EXPECT_TRUE(ranks.Distances().empty()) << "a prompt needs no cache";
  }
}

TEST(ForecastRanksTest, APromptLeavesTheStateThatItsTokensWouldLeaveOneByOne) {
  const Routing routing(10, 1);
  // Only what is decoded teaches: at a rate of zero there is the state alone.
  ForecastRanks one_by_one(Model(), 5, 4, 0);
  std::vector<uint32_t> expected;
  for (size_t t = 0; t < 10; ++t) expected = Decode(one_by_one, routing, {1}, t);
  for (const size_t chunk : {1u, 4u, 9u}) {
    ForecastRanks chunked(Model(), 5, 4, 0);
    for (size_t t = 0; t < 9; t += chunk) {
      Prefill(chunked, routing, {1}, t, std::min<size_t>(9, t + chunk));
    }
    const std::vector<uint32_t> actual = Decode(chunked, routing, {1}, 9);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t e = 0; e < actual.size(); ++e) {
      EXPECT_NEAR(actual[e], expected[e], 2) << "chunk " << chunk << " expert " << e;
    }
  }
}

TEST(ForecastRanksTest, ASequenceBringsItsExpertsNearer) {
  const Routing routing(8, 2);
  ForecastRanks alone(Model(), 5, 4);
  ForecastRanks together(Model(), 5, 4);
  std::vector<uint32_t> one;
  for (size_t t = 0; t < 4; ++t) one = Decode(alone, routing, {1}, t);
  for (size_t t = 0; t < 4; ++t) {
    for (int32_t l = 0; l < kLayers; ++l) {
      const RoutedRow rows[] = {routing.Row({1}, false, l, t), routing.Row({2}, false, l, t + 4)};
      together.Observe(l, rows, kTopK);
    }
  }
  const auto both = together.Distances();
  size_t nearer = 0;
  for (size_t e = 0; e < one.size(); ++e) {
    EXPECT_LE(both[e], one[e] + 1) << e;
    nearer += both[e] < one[e] ? 1 : 0;
  }
  EXPECT_GT(nearer, one.size() / 2);
}

TEST(ForecastRanksTest, KeepsTheSequencesThatWereSeenLast) {
  const Routing routing(1, 3);
  ForecastRanks ranks(Model(), 5, 2);
  for (uint64_t s = 1; s <= 5; ++s) Decode(ranks, routing, {s}, 0);
  EXPECT_EQ(ranks.sequences(), 2u);
  // More at once than are kept: all of them are served.
  std::vector<RoutedRow> rows;
  for (uint64_t s = 11; s <= 14; ++s) rows.push_back(routing.Row({s}, false, 0, 0));
  ranks.Observe(0, rows, kTopK);
  EXPECT_EQ(ranks.Distances().size(), static_cast<size_t>(kLayers * kExperts));
}

// Every token of it uses the first two experts of each layer.
Routing FirstTwo(size_t tokens) {
  Routing routing(tokens, 4);
  for (auto& chosen : routing.chosen) {
    for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<uint16_t>(i % kTopK);
  }
  return routing;
}

TEST(ForecastRanksTest, WhatSequencesUsedBringsItNearerForOthers) {
  const Routing routing = FirstTwo(1);
  ForecastRanks fresh(Model(), 5, 4);
  ForecastRanks taught(Model(), 5, 4);
  for (uint64_t s = 1; s <= 100; ++s) {
    for (int token = 0; token < 40; ++token) Decode(taught, routing, {s}, 0);
  }
  const std::vector<uint32_t> before = Decode(fresh, routing, {1000}, 0);
  const std::vector<uint32_t> after = Decode(taught, routing, {1000}, 0);
  for (size_t e = 0; e < after.size(); ++e) {
    if (e % kExperts < kTopK) {
      EXPECT_LT(after[e], before[e]) << e;
    } else {
      EXPECT_GT(after[e], before[e]) << e;
    }
  }
}

TEST(ForecastRanksTest, PromptsTeachNothing) {
  const Routing routing = FirstTwo(50);
  ForecastRanks fresh(Model(), 5, 4);
  ForecastRanks prompted(Model(), 5, 4);
  for (uint64_t s = 1; s <= 20; ++s) Prefill(prompted, routing, {s}, 0, 50);
  EXPECT_EQ(Decode(prompted, routing, {1000}, 0), Decode(fresh, routing, {1000}, 0));
}

// Each of them is a step for the same token.
TEST(ForecastRanksTest, ManySequencesAtOnceDoNotOvershoot) {
  constexpr size_t kSequences = 4000;
  const Routing routing = FirstTwo(1);
  ForecastRanks ranks(Model(), 5, kSequences);
  for (int token = 0; token < 24; ++token) {
    for (int32_t l = 0; l < kLayers; ++l) {
      std::vector<RoutedRow> rows;
      for (uint64_t s = 1; s <= kSequences; ++s) rows.push_back(routing.Row({s}, false, l, 0));
      ranks.Observe(l, rows, kTopK);
    }
    if (token < 12) continue;
    // One of them alone: the union of so many uses everything.
    const RoutedRow row = routing.Row({1}, false, 0, 0);
    ranks.Observe(0, {&row, 1}, kTopK);
    const auto distances = ranks.Distances();
    for (int32_t l = 0; l < kLayers; ++l) {
      const auto base = static_cast<size_t>(l * kExperts);
      for (size_t e = kTopK; e < kExperts; ++e) ASSERT_LT(distances[base], distances[base + e]);
    }
    for (int32_t l = 1; l < kLayers; ++l) {
      const RoutedRow rest = routing.Row({1}, false, l, 0);
      ranks.Observe(l, {&rest, 1}, kTopK);
    }
  }
}

}  // namespace
}  // namespace expertflow
