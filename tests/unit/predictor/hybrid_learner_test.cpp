// What is learnt while predicting: towards what came, and never without bounds.
#include "predictor/core/hybrid_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/predictor/hybrid_testing.h"

namespace expertflow {
namespace {

using testing::FittedModel;

// A token that uses experts 0 and 1 in every layer.
void EndToken(HybridPredictor& predictor, int32_t token) {
  const std::vector<float> residual(testing::kSyntheticHidden, 1.0f);
  const std::vector<uint16_t> chosen = {0, 1};
  predictor.BeginToken(token);
  for (int32_t layer = 0; layer < 5; ++layer) predictor.ObserveRouter(layer, residual, chosen, {});
}

size_t RowOf(const HybridModel& model, int32_t token) {
  const size_t row = model.TokenRowOf(token);
  EXPECT_LT(row, model.token_count.size()) << token;
  return row;
}

TEST(HybridLearnerTest, ANewTokenGetsAPriorOfWhatItUses) {
  HybridModel fitted = *FittedModel();
  for (int32_t& token : fitted.tokens) token *= 10;  // room between those that are known
  HybridLearner learner(fitted, {});
  HybridPredictor predictor(learner.model());
  const size_t known = learner.model()->tokens.size();
  for (const int32_t token : {-1, 15, 70, 15, 15}) {
    EndToken(predictor, token);
    learner.LearnToken(token, predictor);
  }
  const HybridModel& model = *learner.model();
  ASSERT_TRUE(CheckHybridModel(model).ok());
  EXPECT_EQ(model.tokens.size(), known + 1);  // an unknown one has no row
  const size_t row = RowOf(model, 15);
  EXPECT_EQ(model.token_count[row], 3u);
  const size_t total = model.experts_total();
  for (size_t i = 0; i < total; ++i) {
    const float uses = i % 8 < 2 ? 3.0f : 0.0f;
    const float expected = (uses + kTokenPriorStrength * model.base[i]) / (3 + kTokenPriorStrength);
    EXPECT_NEAR(model.token_prior[row * total + i] / 255.0f, expected, 0.006) << i;
  }
  // The others are where they were.
  for (const int32_t token : fitted.tokens) {
    if (token == 70) continue;
    const size_t before = RowOf(fitted, token);
    const size_t after = RowOf(model, token);
    EXPECT_EQ(model.token_count[after], fitted.token_count[before]);
    EXPECT_EQ(model.token_prior[after * total + 3], fitted.token_prior[before * total + 3]);
  }
}

TEST(HybridLearnerTest, WhatIsWellKnownStaysAndRowsAreBounded) {
  const size_t known = FittedModel()->tokens.size();
  HybridLearner learner(*FittedModel(), {.tokens_max = known + 2, .token_count_max = 10});
  HybridPredictor predictor(learner.model());
  for (int32_t token = 0; token < 100; ++token) {
    EndToken(predictor, token);
    learner.LearnToken(token, predictor);
  }
  EXPECT_EQ(learner.model()->tokens.size(), known + 2);
  const int32_t frequent = FittedModel()->tokens[0];  // seen some hundred times
  EXPECT_EQ(learner.model()->token_count[RowOf(*learner.model(), frequent)],
            FittedModel()->token_count[0]);
}

TEST(HybridLearnerTest, LeavesFollowTheErrorOfWhatTheyPredicted) {
  HybridLearner learner(*FittedModel(), {.leaf_rate = 0.1f});
  const RandomForest& forest = learner.model()->forest_probe[0];
  const std::vector<uint16_t> leaves(static_cast<size_t>(forest.trees), 3);
  const float before = forest.leaf[3];
  const float other = forest.leaf[4];
  learner.LearnLeaves(leaves, -0.5f);
  EXPECT_NEAR(forest.leaf[3], before - 0.05f, 1e-6);
  EXPECT_EQ(forest.leaf[4], other);
  for (int i = 0; i < 1'000; ++i) learner.LearnLeaves(leaves, -1);
  EXPECT_EQ(forest.leaf[3], -1);
  learner.LearnLeaves(leaves, std::numeric_limits<float>::quiet_NaN());
  learner.LearnLeaves(std::span(leaves).first(2), 1);  // of another forest
  EXPECT_EQ(forest.leaf[3], -1);
  EXPECT_NE(FittedModel()->forest_probe[0].leaf[3], -1);  // the model itself is nobody's to change
}

}  // namespace
}  // namespace expertflow
