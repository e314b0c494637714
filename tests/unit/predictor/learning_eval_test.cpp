// What workers learn from each other helps them, on text that none of them was fitted to.
#include "predictor/learning_eval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/unit/predictor/hybrid_testing.h"

namespace expertflow {
namespace {

using testing::FittedModel;
using testing::MakeFeatures;

TEST(LearningEvalTest, SharingIsNearlyAsGoodAsSeeingEverything) {
  // What the forest says is wrong.
  auto spoilt = std::make_shared<HybridModel>(*FittedModel());
  for (float& leaf : spoilt->forest_probe[0].leaf) leaf = std::clamp(-4 * leaf, -1.0f, 1.0f);
  const auto trace = MakeFeatures({.sequences = 120, .seed = 6});
  const auto recall = [&](const LearningOptions& options) {
    const auto scores = JudgeLearning(spoilt, *trace, options);
    HybridScore all;
    for (const HybridScore& score : scores) all.Add(score);
    EXPECT_GT(all.uses, 10'000u);
    return all.recall();
  };
  const double fitted = recall({.learns = false});
  const double one = recall({.workers = 1});
  const double alone = recall({.workers = 4});
  const double sharing = recall({.workers = 4, .shares = true});
  EXPECT_GT(alone, fitted + 0.005);
  EXPECT_GT(sharing, alone + 0.005);
  EXPECT_NEAR(sharing, one, 0.01);
}

}  // namespace
}  // namespace expertflow
