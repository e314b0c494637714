#include "worker/schedule/expert_demand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace expertflow {
namespace {

using ::testing::Each;

void Observe(ExpertDemand* demand, int32_t token, int32_t layer, std::vector<int32_t> experts,
             int times = 1) {
  for (int i = 0; i < times; ++i) demand->Observe(token, LayerId(layer), experts);
}

TEST(ExpertDemandTest, WhatATokenUsedItWillUse) {
  ExpertDemand demand(2, 4, 100);
  Observe(&demand, 7, 0, {0, 1}, 200);
  Observe(&demand, 8, 0, {2, 3}, 200);
  Observe(&demand, 7, 1, {3, 1}, 200);
  const auto seven = demand.Predict(std::vector<int32_t>{7});
  EXPECT_GT(seven[0], 0.98F);
  EXPECT_GT(seven[1], 0.98F);
  EXPECT_LT(seven[2], 0.02F);
  EXPECT_GT(seven[4 + 3], 0.98F);
  EXPECT_LT(seven[4 + 0], 0.02F);
  const auto both = demand.Predict(std::vector<int32_t>{7, 8});
  for (size_t e = 0; e < 4; ++e) EXPECT_NEAR(both[e], 0.5F, 0.02F);
  // A token that was never seen uses what all use.
  const auto other = demand.Predict(std::vector<int32_t>{9});
  for (size_t e = 0; e < 4; ++e) EXPECT_NEAR(other[e], 0.5F, 1e-6F);
}

TEST(ExpertDemandTest, KnowsNothingBeforeItHasSeenAnything) {
  const ExpertDemand demand(2, 4, 100);
  EXPECT_THAT(demand.Predict(std::vector<int32_t>{1, 2}), Each(0));
}

TEST(ExpertDemandTest, TheLatestTokensCountAndCountsStayWithinBounds) {
  ExpertDemand demand(1, 2, 100);
  Observe(&demand, 1, 0, {0}, 100'000);
  Observe(&demand, 2, 0, {1}, 1000);
  std::vector<int32_t> tokens(500, 2);
  tokens.insert(tokens.end(), 64, 1);
  EXPECT_NEAR(demand.Predict(tokens)[0], 1, 1e-3F);
  Observe(&demand, 1, 0, {1}, 100'000);  // it has changed
  EXPECT_LT(demand.Predict(tokens)[0], 0.1F);
}

TEST(ExpertDemandTest, ExpertsAddedAreThoseThatNobodyElseNeeds) {
  const std::vector<float> unused = {1, 0, 0.5F};
  EXPECT_FLOAT_EQ(ExpertsAdded(unused, std::vector<float>{0.5F, 1, 1}), 1);
  EXPECT_FLOAT_EQ(ExpertsAdded(unused, std::vector<float>{0, 1, 0}), 0);
}

}  // namespace
}  // namespace expertflow
