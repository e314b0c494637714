// The forest: fitted trees against what made the data, and evaluation against a walk down each
// tree.
#include "predictor/forest_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace expertflow {
namespace {

using ::testing::HasSubstr;

// Three features: the target is a step of the first, half a step of the second for some, and noise.
ForestRows Steps(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  ForestRows rows;
  rows.features = 3;
  for (size_t r = 0; r < count; ++r) {
    const float x[3] = {uniform(random), uniform(random), uniform(random)};
    rows.values.insert(rows.values.end(), x, x + 3);
    rows.target.push_back((x[0] > 0.25f ? 1.0f : 0.0f) + (x[0] > 0.25f && x[1] > 0 ? 0.5f : 0.0f) +
                          0.1f * uniform(random));
  }
  return rows;
}

std::vector<float> Evaluate(const RandomForest& forest, const ForestRows& rows) {
  std::vector<float> out(rows.rows());
  EvaluateForest(forest, rows.values.data(), 3, out);
  return out;
}

TEST(ForestFitTest, FindsTheStepsThatMadeTheData) {
  const auto forest = FitForest(Steps(20'000, 1), {.trees = 10, .depth = 4, .tried_features = 3});
  ASSERT_TRUE(forest.ok()) << forest.status().ToString();
  ASSERT_TRUE(CheckRandomForest(*forest).ok());
  const ForestRows other = Steps(2'000, 2);
  const std::vector<float> found = Evaluate(*forest, other);
  double squares = 0;
  for (size_t r = 0; r < other.rows(); ++r) {
    squares += (found[r] - other.target[r]) * (found[r] - other.target[r]);
  }
  // The noise alone has a root mean square of .058, the target one of .6.
  EXPECT_LT(std::sqrt(squares / static_cast<double>(other.rows())), 0.09);
}

TEST(ForestFitTest, EvaluationIsTheMeanOfWalksDownTheTrees) {
  const auto forest = FitForest(Steps(5'000, 3), {.trees = 7, .depth = 5});
  ASSERT_TRUE(forest.ok());
  const ForestRows rows = Steps(100, 4);
  const std::vector<float> found = Evaluate(*forest, rows);
  for (size_t r = 0; r < rows.rows(); ++r) {
    float sum = 0;
    for (size_t tree = 0; tree < 7; ++tree) {
      size_t node = 0;
      while (node < forest->nodes()) {
        const size_t at = tree * forest->nodes() + node;
        const bool right = rows.values[r * 3 + forest->feature[at]] > forest->threshold[at];
        node = 2 * node + (right ? 2 : 1);
      }
      sum += forest->leaf[tree * forest->leaves() + node - forest->nodes()];
    }
    EXPECT_NEAR(found[r], sum / 7, 1e-5);
  }
}

TEST(ForestFitTest, ASeedGivesTheSameForestOnAnyNumberOfThreads) {
  const ForestRows rows = Steps(3'000, 5);
  const auto one = FitForest(rows, {.trees = 9, .seed = 4, .threads = 1});
  const auto three = FitForest(rows, {.trees = 9, .seed = 4, .threads = 3});
  const auto other = FitForest(rows, {.trees = 9, .seed = 5, .threads = 3});
  ASSERT_TRUE(one.ok() && three.ok() && other.ok());
  EXPECT_EQ(one->threshold, three->threshold);
  EXPECT_EQ(one->leaf, three->leaf);
  EXPECT_NE(one->leaf, other->leaf);
}

TEST(ForestFitTest, AFeatureOfFewValuesIsSplitBetweenThem) {
  ForestRows rows;
  rows.features = 1;
  for (size_t r = 0; r < 3'000; ++r) {
    rows.values.push_back(static_cast<float>(r % 3));
    rows.target.push_back(r % 3 == 1 ? 1.0f : 0.0f);
  }
  const auto forest = FitForest(rows, {.trees = 3, .depth = 2});
  ASSERT_TRUE(forest.ok());
  const float values[3] = {0, 1, 2};
  std::vector<float> out(3);
  EvaluateForest(*forest, values, 1, out);
  EXPECT_FLOAT_EQ(out[0], 0);
  EXPECT_FLOAT_EQ(out[1], 1);
  EXPECT_FLOAT_EQ(out[2], 0);
}

TEST(ForestFitTest, WhatCannotBeFittedIsRefused) {
  ForestRows rows = Steps(10, 6);
  EXPECT_FALSE(FitForest({}, {}).ok());
  EXPECT_FALSE(FitForest(rows, {.trees = 0}).ok());
  EXPECT_FALSE(FitForest(rows, {.depth = kForestDepthMax + 1}).ok());
  rows.values[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(FitForest(rows, {}).status().message(), HasSubstr("no number"));
  rows.values.pop_back();
  EXPECT_THAT(FitForest(rows, {}).status().message(), HasSubstr("do not agree"));
}

}  // namespace
}  // namespace expertflow
