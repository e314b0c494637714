// Prediction for running sequences, against predictors that are fed by hand.
#include "predictor/core/live_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "predictor/core/any_of_ppm.h"
#include "tests/unit/predictor/hybrid_testing.h"

namespace expertflow {
namespace {

using testing::FittedModel;
using testing::MakeFeatures;

constexpr int32_t kLayers = 5;

// A token of a recorded sequence as a row; owns what the row borrows.
struct Token {
  Token(const FeatureTrace& trace, size_t sequence, size_t at, int32_t layer, bool prefill = false)
      : residual(testing::kSyntheticHidden), weights(testing::kSyntheticTopK) {
    trace.RouterState(sequence, at, layer, residual);
    trace.Weights(sequence, at, layer, weights);
    row = {.sequence = {sequence + 100},
           .token = trace.TokenId(sequence, at),
           .prefill = prefill,
           .residual = residual,
           .chosen = trace.Chosen(sequence, at, layer),
           .weights = weights};
  }
  std::vector<float> residual;
  std::vector<float> weights;
  PredictorRow row;
};

void Decode(LivePredictor& live, const FeatureTrace& trace, const std::vector<size_t>& sequences,
            size_t at, int32_t layer) {
  std::vector<std::unique_ptr<Token>> tokens;
  std::vector<PredictorRow> rows;
  for (const size_t s : sequences) {
    tokens.push_back(std::make_unique<Token>(trace, s, at, layer));
    rows.push_back(tokens.back()->row);
  }
  live.Observe(layer, rows);
}

void ByHand(HybridPredictor& predictor, const FeatureTrace& trace, size_t sequence, size_t at,
            int32_t layer) {
  if (layer == 0) predictor.BeginToken(trace.TokenId(sequence, at));
  const Token token(trace, sequence, at, layer);
  predictor.ObserveRouter(layer, token.residual, token.row.chosen, token.weights);
}

void ExpectSame(const LivePredictor& live, const HybridPredictor& predictor, int32_t distance) {
  const auto expected = predictor.Probabilities(distance);
  const auto found = live.ProbabilityPpm(distance);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t e = 0; e < found.size(); ++e) EXPECT_NEAR(found[e], expected[e] * 1e6, 2);
}

TEST(LivePredictorTest, OneSequenceIsOnePredictor) {
  const auto trace = MakeFeatures({.sequences = 1, .seed = 5});
  LivePredictor live(FittedModel(), 4, false);
  HybridPredictor predictor(FittedModel());
  for (size_t at = 0; at < 10; ++at) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      Decode(live, *trace, {0}, at, layer);
      ByHand(predictor, *trace, 0, at, layer);
      ASSERT_EQ(live.Predict(3), std::min(3, kLayers - 1 - layer));
      const int32_t count = predictor.Evaluate(PredictionArm::kForestProbe, 3);
      for (int32_t d = 1; d <= count; ++d) ExpectSame(live, predictor, d);
    }
  }
}

TEST(LivePredictorTest, SeveralSequencesNeedWhatAnyOfThemNeeds) {
  const auto trace = MakeFeatures({.sequences = 2, .seed = 5});
  LivePredictor live(FittedModel(), 4, false);
  HybridPredictor one(FittedModel());
  HybridPredictor other(FittedModel());
  Decode(live, *trace, {0, 1}, 0, 0);
  ByHand(one, *trace, 0, 0, 0);
  ByHand(other, *trace, 1, 0, 0);
  ASSERT_EQ(live.Predict(1), 1);
  one.Evaluate(PredictionArm::kForestProbe, 1);
  other.Evaluate(PredictionArm::kForestProbe, 1);
  for (size_t e = 0; e < 8; ++e) {
    const double any = 1 - (1 - one.Probabilities(1)[e]) * (1 - other.Probabilities(1)[e]);
    EXPECT_NEAR(live.ProbabilityPpm(1)[e], any * 1e6, 3);
  }
}

// A prompt goes through the layers all at once; what follows is as after its tokens one by one.
TEST(LivePredictorTest, APromptLeavesTheStateOfItsTokens) {
  const auto trace = MakeFeatures({.sequences = 1, .seed = 5});
  LivePredictor live(FittedModel(), 4, false);
  HybridPredictor predictor(FittedModel());
  constexpr size_t kPrompt = 12;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<std::unique_ptr<Token>> tokens;
    std::vector<PredictorRow> rows;
    for (size_t at = 0; at < kPrompt; ++at) {
      tokens.push_back(std::make_unique<Token>(*trace, 0, at, layer, true));
      rows.push_back(tokens.back()->row);
    }
    live.Observe(layer, rows);
    EXPECT_EQ(live.Predict(3), 0);
  }
  for (size_t at = 0; at < kPrompt; ++at) {
    for (int32_t layer = 0; layer < kLayers; ++layer) ByHand(predictor, *trace, 0, at, layer);
  }
  for (int32_t layer = 0; layer < 3; ++layer) {
    Decode(live, *trace, {0}, kPrompt, layer);
    ByHand(predictor, *trace, 0, kPrompt, layer);
    ASSERT_EQ(live.Predict(1), 1);
    predictor.Evaluate(PredictionArm::kForestProbe, 1);
    ExpectSame(live, predictor, 1);
  }
}

// Runs through all sequences, one after the other.
void RunAll(LivePredictor& live, const FeatureTrace& trace) {
  for (size_t s = 0; s < trace.sequences(); ++s) {
    for (size_t at = 0; at < trace.length(s); ++at) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        Decode(live, trace, {s}, at, layer);
        live.Predict(2);
      }
    }
  }
}

TEST(LivePredictorTest, RecallIsWatchedAndProbabilitiesKeepTheirPromise) {
  const auto trace = MakeFeatures({.sequences = 20, .seed = 6});
  LivePredictor live(FittedModel(), 2, false);
  RunAll(live, *trace);
  EXPECT_EQ(live.sequences(), 2u);
  for (const int32_t distance : {1, 2}) {
    const LiveRecall& recall = live.recall(distance);
    EXPECT_GT(recall.recall(), 0.8);
    EXPECT_LT(recall.pre_gate_recall(), recall.recall());
    EXPECT_NEAR(recall.overconfidence(), 0, 0.06);
    EXPECT_FALSE(recall.falls_back);
  }
  EXPECT_EQ(live.recall(3).uses, 0);  // never asked for
}

TEST(LivePredictorTest, OfSeveralSequencesOneIsWatched) {
  const auto trace = MakeFeatures({.sequences = 3, .seed = 6});
  LivePredictor live(FittedModel(), 4, false);
  // One distance from one layer: a promise is kept or not in each pass, once for the row watched.
  size_t passes = 0;
  for (size_t at = 0; at < 12; ++at, ++passes) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      Decode(live, *trace, {0, 1, 2}, at, layer);
      if (layer == 1) live.Predict(1);
    }
  }
  const double all = static_cast<double>(passes) * testing::kSyntheticTopK;
  EXPECT_GT(live.recall(1).uses, 0.9 * all);  // decayed a little
  EXPECT_LE(live.recall(1).uses, all);
}

TEST(LivePredictorTest, ThePreGateTakesOverFromAFitThatDoesNotHold) {
  auto broken = std::make_shared<HybridModel>(*FittedModel());
  for (ByteMatrix& probe : broken->probe[0]) {
    for (float& scale : probe.scale) scale = -scale;
  }
  std::vector<float>& leaves = broken->forest_probe[0].leaf;
  std::fill(leaves.begin(), leaves.end(), 0.0f);
  const auto trace = MakeFeatures({.sequences = 20, .seed = 6});
  LivePredictor live(broken, 2, false);
  RunAll(live, *trace);
  EXPECT_TRUE(live.recall(1).falls_back);
  EXPECT_LT(live.recall(1).recall(), live.recall(1).pre_gate_recall());
  // What is predicted now is the pre-gate's.
  HybridPredictor predictor(broken);
  const auto next = MakeFeatures({.sequences = 1, .seed = 7});
  for (int32_t layer = 0; layer < 2; ++layer) {
    const Token token(*next, 0, 0, layer);
    PredictorRow row = token.row;
    row.sequence = {999};
    live.Observe(layer, std::span(&row, 1));
    ByHand(predictor, *next, 0, 0, layer);
    live.Predict(1);
    predictor.Evaluate(PredictionArm::kPreGate, 1);
    ExpectSame(live, predictor, 1);
  }
}

TEST(LivePredictorTest, LearningPutsAForestRightThatPromisesTooMuch) {
  auto bold = std::make_shared<HybridModel>(*FittedModel());
  for (float& leaf : bold->forest_probe[0].leaf) leaf = std::min(leaf + 0.3f, 1.0f);
  const auto trace = MakeFeatures({.sequences = 60, .seed = 6});
  LivePredictor fixed(bold, 2, false);
  LivePredictor learning(bold, 2, true);
  RunAll(fixed, *trace);
  RunAll(learning, *trace);
  EXPECT_GT(fixed.recall(2).overconfidence(), 0.05);
  EXPECT_LT(learning.recall(2).overconfidence(), fixed.recall(2).overconfidence() - 0.01);
}

TEST(LivePredictorTest, WhatStartsInTheMiddleIsTakenUpAtItsNextToken) {
  const auto trace = MakeFeatures({.sequences = 2, .seed = 5});
  LivePredictor live(FittedModel(), 4, false);
  Decode(live, *trace, {0}, 0, 2);
  EXPECT_EQ(live.Predict(1), 0);
  Decode(live, *trace, {0}, 1, 0);
  EXPECT_EQ(live.Predict(1), 1);
  Decode(live, *trace, {0}, 1, 3);  // two layers are missing
  EXPECT_EQ(live.Predict(1), 0);
  Decode(live, *trace, {0}, 2, 0);
  EXPECT_EQ(live.Predict(1), 1);
}

}  // namespace
}  // namespace expertflow
