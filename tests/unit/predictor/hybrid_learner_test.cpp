// What is learnt while predicting: towards what came, and never without bounds.
#include "predictor/core/hybrid_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "predictor/core/learnt_merge.h"
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

TEST(HybridLearnerTest, LeavesMoveByTheMeanOfWhatTheFittedForestLeftOver) {
  HybridLearner learner(*FittedModel(), {.leaf_weight = 4, .leaf_step = 1});
  const RandomForest& forest = learner.model()->forest_probe[0];
  const std::vector<uint16_t> leaves(static_cast<size_t>(forest.trees), 3);
  float fitted = 0;
  for (int32_t tree = 0; tree < forest.trees; ++tree) {
    fitted += forest.leaf[static_cast<size_t>(tree) * forest.leaves() + 3];
  }
  fitted /= static_cast<float>(forest.trees);
  const float before = forest.leaf[3];
  const float other = forest.leaf[4];
  learner.LearnLeaves(leaves, fitted - 0.5f);
  EXPECT_NEAR(forest.leaf[3], before - 0.5f / 5, 1e-5);
  learner.LearnLeaves(leaves, fitted + 0.3f);  // again of what was fitted
  EXPECT_NEAR(forest.leaf[3], before - 0.2f / 6, 1e-5);
  EXPECT_EQ(forest.leaf[4], other);
  for (int i = 0; i < 10'000; ++i) learner.LearnLeaves(leaves, -100);  // more than can be wrong
  EXPECT_EQ(forest.leaf[3], -1);
  learner.LearnLeaves(leaves, std::numeric_limits<float>::quiet_NaN());
  learner.LearnLeaves(std::span(leaves).first(2), 1);  // of another forest
  EXPECT_EQ(forest.leaf[3], -1);
  EXPECT_NE(FittedModel()->forest_probe[0].leaf[3], -1);  // the model is nobody's to change
}

// --- batches and versions ----------------------------------------------------------------------

// Two workers, and one that sees what both see.
class SharedLearningTest : public ::testing::Test {
 protected:
  SharedLearningTest() {
    for (int32_t& token : fitted_.tokens) token *= 10;
    for (auto* learner : {&one_, &other_, &both_}) {
      learner->emplace(fitted_, HybridLearnerOptions{});
    }
  }
  // Tokens, and leaves of some kind.
  void Learn(std::optional<HybridLearner>& learner, int32_t token, float correction) {
    for (HybridLearner* l : {&*learner, &*both_}) {
      HybridPredictor predictor(l->model());
      EndToken(predictor, token);
      l->LearnToken(token, predictor);
      const size_t trees = static_cast<size_t>(l->model()->forest_probe[0].trees);
      l->LearnLeaves(std::vector<uint16_t>(trees, static_cast<uint16_t>(token % 7)), correction);
    }
  }
  static void Send(HybridLearner& from, WorkerId id, LearntMerge* merge) {
    if (const auto batch = from.TakeBatch(SIZE_MAX)) {
      EXPECT_TRUE(CheckLearnt(batch->statistics).ok());
      EXPECT_TRUE(merge->Add(id, *batch));
    }
  }
  static void Adopt(HybridLearner& learner, WorkerId id, const LearntMerge& merge) {
    const LearntVersion changed = merge.ChangedSince(learner.version());
    EXPECT_TRUE(CheckLearnt(changed).ok());
    learner.Adopt(changed, merge.Included(id));
  }
  // To the bit: sums are of whole numbers.
  static void ExpectSame(const HybridLearner& a, const HybridLearner& b) {
    const HybridModel& left = *a.model();
    const HybridModel& right = *b.model();
    EXPECT_TRUE(CheckHybridModel(left).ok());
    EXPECT_EQ(left.forest_probe[0].leaf, right.forest_probe[0].leaf);
    ASSERT_EQ(left.tokens, right.tokens);
    const size_t total = left.experts_total();
    for (const int32_t token : left.tokens) {
      const size_t l = RowOf(left, token);
      const size_t r = RowOf(right, token);
      EXPECT_EQ(left.token_count[l], right.token_count[r]) << token;
      EXPECT_TRUE(std::equal(left.token_prior.begin() + static_cast<ptrdiff_t>(l * total),
                             left.token_prior.begin() + static_cast<ptrdiff_t>((l + 1) * total),
                             right.token_prior.begin() + static_cast<ptrdiff_t>(r * total)))
          << token;
    }
  }

  HybridModel fitted_ = *FittedModel();
  std::optional<HybridLearner> one_, other_, both_;
  const WorkerId first_{1}, second_{2};
};

TEST_F(SharedLearningTest, TwoThatShareAreOneThatSawBoth) {
  for (const bool second_first : {false, true}) {
    for (auto* learner : {&one_, &other_, &both_}) {
      learner->emplace(fitted_, HybridLearnerOptions{});
    }
    LearntMerge merge({});
    for (int round = 0; round < 5; ++round) {
      for (int32_t i = 0; i < 20; ++i) {
        Learn(one_, 15 + i % 7, 0.3f);
        Learn(other_, 15 + i % 5 + 10 * round, -0.7f);
      }
      if (second_first) Send(*other_, second_, &merge);
      Send(*one_, first_, &merge);
      if (!second_first) Send(*other_, second_, &merge);
      ASSERT_TRUE(merge.Advance());
      Adopt(*one_, first_, merge);
      Adopt(*other_, second_, merge);
      ExpectSame(*one_, *both_);
      ExpectSame(*other_, *both_);
    }
    EXPECT_FALSE(merge.Advance());  // nothing new
    EXPECT_EQ(one_->version(), 5u);
  }
}

// What was learnt while a batch was under way, and what is in it, is not lost and not counted
// twice.
TEST_F(SharedLearningTest, LearningGoesOnWhileABatchIsUnderWay) {
  LearntMerge merge({});
  Learn(one_, 15, 0.3f);
  const auto batch = one_->TakeBatch(SIZE_MAX);
  ASSERT_NE(batch, nullptr);
  Learn(one_, 15, 0.2f);
  Learn(one_, 25, 0.2f);
  EXPECT_EQ(one_->TakeBatch(SIZE_MAX), nullptr);  // one at a time
  ExpectSame(*one_, *both_);
  // A version that does not have it yet, but rows of the same kind from the other one.
  Learn(other_, 15, 0.9f);
  Send(*other_, second_, &merge);
  merge.Advance();
  Adopt(*one_, first_, merge);
  ExpectSame(*one_, *both_);
  EXPECT_TRUE(merge.Add(first_, *batch));
  merge.Advance();
  Adopt(*one_, first_, merge);
  ExpectSame(*one_, *both_);
  Send(*one_, first_, &merge);
  merge.Advance();
  Adopt(*one_, first_, merge);
  Adopt(*other_, second_, merge);
  ExpectSame(*one_, *both_);
  ExpectSame(*other_, *both_);
}

TEST_F(SharedLearningTest, ABatchThatIsLostComesAgainAndOneThatComesTwiceCountsOnce) {
  LearntMerge merge({});
  Learn(one_, 15, 0.3f);
  const auto lost = one_->TakeBatch(SIZE_MAX);
  std::shared_ptr<const LearntBatch> again;
  for (int i = 0; i < 100 && again == nullptr; ++i) again = one_->TakeBatch(SIZE_MAX);
  ASSERT_EQ(again, lost);
  EXPECT_TRUE(merge.Add(first_, *again));
  EXPECT_FALSE(merge.Add(first_, *again));
  merge.Advance();
  Adopt(*other_, second_, merge);
  ExpectSame(*other_, *both_);
  EXPECT_EQ(merge.batches(), 1u);
}

TEST_F(SharedLearningTest, AnOldVersionChangesNothing) {
  LearntMerge merge({});
  Learn(one_, 15, 0.3f);
  Send(*one_, first_, &merge);
  merge.Advance();
  const LearntVersion old = merge.ChangedSince(0);
  const uint64_t old_included = merge.Included(first_);
  Adopt(*one_, first_, merge);
  Learn(one_, 15, -0.8f);
  Send(*one_, first_, &merge);
  merge.Advance();
  Adopt(*one_, first_, merge);
  one_->Adopt(old, old_included);
  EXPECT_EQ(one_->version(), 2u);
  ExpectSame(*one_, *both_);
}

TEST_F(SharedLearningTest, OneThatComesLaterHasAllAtOnceAndOneThatIsReplacedIsNotForgotten) {
  LearntMerge merge({});
  for (int i = 0; i < 3; ++i) {
    Learn(one_, 15 + i, 0.3f);
    Send(*one_, first_, &merge);
    merge.Advance();
    Adopt(*one_, first_, merge);
  }
  merge.Forget(first_);
  HybridLearner late(fitted_, {});
  Adopt(late, WorkerId(7), merge);
  EXPECT_EQ(late.version(), 3u);
  ExpectSame(late, *both_);
  // Its batches begin with one, as those of the lost one did.
  HybridPredictor predictor(late.model());
  EndToken(predictor, 17);
  late.LearnToken(17, predictor);
  const auto batch = late.TakeBatch(SIZE_MAX);
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->number, 1u);
  EXPECT_TRUE(merge.Add(WorkerId(7), *batch));
}

TEST_F(SharedLearningTest, RowsThatDoNotFitInABatchComeInTheNextOne) {
  LearntMerge merge({});
  for (int32_t token = 15; token < 25; ++token) Learn(one_, token, 0.1f);
  size_t batches = 0;
  for (int i = 0; i < 50; ++i) {
    const auto batch = one_->TakeBatch(100);
    if (batch == nullptr) continue;
    ++batches;
    EXPECT_LE(batch->statistics.tokens.size(), 3u);
    EXPECT_TRUE(merge.Add(first_, *batch));
    merge.Advance();
    Adopt(*one_, first_, merge);
  }
  EXPECT_GE(batches, 4u);
  Adopt(*other_, second_, merge);
  ExpectSame(*other_, *both_);
}

TEST_F(SharedLearningTest, RowsOfAnotherModelAreLeftOutAndRoomIsBounded) {
  LearntVersion odd;
  odd.version = 1;
  odd.totals.leaves = {3, 1'000'000};
  odd.totals.leaf_count = {2, 2};
  odd.totals.leaf_rest = {65536, 65536};
  odd.leaf_version = {1, 1};
  odd.totals.tokens = {15};
  odd.totals.token_count = {70'000};
  odd.totals.token_experts = {2};
  odd.totals.experts = {1, 60'000};
  odd.totals.uses = {65'535, 9};
  odd.token_version = {1};
  ASSERT_TRUE(CheckLearnt(odd).ok());
  one_->Adopt(odd, 0);
  EXPECT_TRUE(CheckHybridModel(*one_->model()).ok());

  LearntMerge small({.tokens_max = 2});
  LearntBatch batch;
  batch.number = 1;
  batch.statistics.tokens = {1, 2, 3};
  batch.statistics.token_count = {1, 1, 1};
  batch.statistics.token_experts = {1, 1, 1};
  batch.statistics.experts = {0, 0, 0};
  batch.statistics.uses = {1, 1, 1};
  ASSERT_TRUE(CheckLearnt(batch.statistics).ok());
  EXPECT_TRUE(small.Add(first_, batch));
  EXPECT_EQ(small.tokens(), 2u);
  EXPECT_EQ(small.tokens_left_out(), 1u);
}

TEST(LearntStatisticsTest, WhatCannotBeIsRefused) {
  LearntStatistics good;
  good.leaves = {1, 4};
  good.leaf_count = {2, 1};
  good.leaf_rest = {-262144, 0};
  good.tokens = {5, 9};
  good.token_count = {1, 1};
  good.token_experts = {2, 1};
  good.experts = {3, 7, 3};
  good.uses = {1, 1, 1};
  good.recall.resize(kPredictDistances);
  ASSERT_TRUE(CheckLearnt(good).ok());
  const std::vector<std::function<void(LearntStatistics&)>> mistakes = {
      [](auto& s) { s.leaves = {4, 4}; },
      [](auto& s) { s.leaves[1] = 1u << 30; },
      [](auto& s) { s.leaf_count.pop_back(); },
      [](auto& s) { s.leaf_rest[0] = -262145; },
      [](auto& s) { s.tokens = {9, 5}; },
      [](auto& s) { s.tokens[0] = -1; },
      [](auto& s) { s.token_count.push_back(1); },
      [](auto& s) { s.token_experts = {2, 2}; },
      [](auto& s) { s.token_experts = {2, 0}; },
      [](auto& s) { s.token_experts = {UINT32_MAX, 1}; },
      [](auto& s) { s.experts = {7, 3, 3}; },
      [](auto& s) { s.uses.pop_back(); },
      [](auto& s) { s.recall.pop_back(); },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    LearntStatistics bad = good;
    mistakes[i](bad);
    EXPECT_EQ(CheckLearnt(bad).code(), StatusCode::kInvalidArgument) << i;
  }
  LearntVersion version{1, good, {1, 1}, {1}, 0};
  EXPECT_FALSE(CheckLearnt(version).ok());
  version.token_version.push_back(1);
  EXPECT_TRUE(CheckLearnt(version).ok());
}

}  // namespace
}  // namespace expertflow
