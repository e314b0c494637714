#include "sim/expert_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace expertflow {
namespace {

using ::testing::ElementsAre;

// One layer; each row is the experts of a token.
RoutingTrace TraceOf(int32_t experts, const std::vector<std::vector<uint16_t>>& rows) {
  RoutingTrace trace;
  trace.experts = {experts};
  trace.top_k = static_cast<int32_t>(rows.front().size());
  for (const auto& row : rows) {
    trace.chosen.insert(trace.chosen.end(), row.begin(), row.end());
    trace.weights.resize(trace.chosen.size(), 0.5f);
  }
  trace.sequences = {{0, rows.size()}};
  return trace;
}

TEST(ExpertUse, CountsTokensAndPairs) {
  const LayerUse use = CountUse(TraceOf(4, {{0, 2}, {2, 0}, {2, 3}}), 0);
  EXPECT_THAT(use.uses, ElementsAre(2, 0, 3, 1));
  EXPECT_THAT(use.together, ElementsAre(0, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 1, 0));
}

// Two groups that are never mixed, numbered alternately: each lies together.
TEST(ExpertUse, ExpertsUsedTogetherBecomeNeighbours) {
  const LayerUse use = CountUse(
      TraceOf(6, {{1, 3}, {3, 5}, {1, 5}, {1, 3}, {0, 2}, {2, 4}, {2, 4}, {1, 3}, {3, 5}}), 0);
  EXPECT_THAT(OrderByCoActivation(use), ElementsAre(1, 3, 5, 0, 2, 4));
}

TEST(ExpertUse, UnusedExpertsComeLastInTheirOrder) {
  const LayerUse use = CountUse(TraceOf(5, {{3, 1}}), 0);
  EXPECT_THAT(OrderByCoActivation(use), ElementsAre(1, 3, 0, 2, 4));
  const LayerUse none{.uses = std::vector<uint64_t>(3), .together = std::vector<uint64_t>(9)};
  EXPECT_THAT(OrderByCoActivation(none), ElementsAre(0, 1, 2));
}

// Any counts: a permutation, whose neighbours were together more often than in the model's order.
TEST(ExpertUse, EveryOrderIsAPermutation) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const int32_t experts = 2 + static_cast<int32_t>(random() % 60);
    std::vector<std::vector<uint16_t>> rows;
    for (int row = 0; row < 40; ++row) {
      const auto a = static_cast<uint16_t>(random() % static_cast<uint32_t>(experts));
      rows.push_back({a, static_cast<uint16_t>((a * 7 + 3 + random() % 2) % experts)});
    }
    const LayerUse use = CountUse(TraceOf(experts, rows), 0);
    const std::vector<int32_t> order = OrderByCoActivation(use);
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()).size(), use.experts());
    ASSERT_EQ(order.size(), use.experts());
    const auto neighbours = [&](auto&& at) {
      uint64_t sum = 0;
      for (size_t i = 1; i < use.experts(); ++i) {
        sum += use.together[at(i - 1) * use.experts() + at(i)];
      }
      return sum;
    };
    EXPECT_GE(neighbours([&](size_t i) { return static_cast<size_t>(order[i]); }),
              neighbours([](size_t i) { return i; }));
  }
}

TEST(ExpertUse, TheMostUsedOfAllLayers) {
  const std::vector<LayerUse> layers = {{.uses = {5, 1, 3}, .together = {}},
                                        {.uses = {3, 9, 0}, .together = {}}};
  EXPECT_THAT(MostUsed(layers, 3),
              ElementsAre(ElementsAre(true, false, true), ElementsAre(false, true, false)));
  EXPECT_THAT(MostUsed(layers, 0),
              ElementsAre(ElementsAre(false, false, false), ElementsAre(false, false, false)));
  EXPECT_THAT(MostUsed(layers, 100),
              ElementsAre(ElementsAre(true, true, true), ElementsAre(true, true, true)));
}

}  // namespace
}  // namespace expertflow
