// The state of a sequence, and what evaluation promises, whatever it is fed.
#include "predictor/core/hybrid_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "predictor/core/byte_matrix.h"
#include "tests/unit/predictor/hybrid_testing.h"

namespace expertflow {
namespace {

using ::testing::ElementsAreArray;
using testing::FittedModel;
using testing::MakeFeatures;
using ::testing::SizeIs;

std::vector<float> Copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

// The probabilities of all tokens from layer 1 on, two layers ahead.
std::vector<float> Follow(HybridPredictor& predictor, const FeatureTrace& trace, size_t sequence,
                          PredictionArm arm = PredictionArm::kForestProbe) {
  std::vector<float> found;
  std::vector<float> residual(testing::kSyntheticHidden);
  std::vector<float> weights(testing::kSyntheticTopK);
  for (size_t at = 0; at < trace.length(sequence); ++at) {
    predictor.BeginToken(trace.TokenId(sequence, at));
    for (int32_t layer = 0; layer < 5; ++layer) {
      trace.RouterState(sequence, at, layer, residual);
      trace.Weights(sequence, at, layer, weights);
      predictor.ObserveRouter(layer, residual, trace.Chosen(sequence, at, layer), weights);
      if (layer != 1) continue;
      EXPECT_EQ(predictor.Evaluate(arm, 2), 2);
      for (const float p : predictor.Probabilities(2)) found.push_back(p);
    }
  }
  return found;
}

TEST(HybridPredictorTest, AResetIsANewSequence) {
  const auto trace = MakeFeatures({.sequences = 2, .seed = 5});
  HybridPredictor used(FittedModel());
  Follow(used, *trace, 0);
  used.Reset();
  HybridPredictor fresh(FittedModel());
  EXPECT_EQ(Follow(used, *trace, 1), Follow(fresh, *trace, 1));
}

TEST(HybridPredictorTest, WhatWasBeforeMatters) {
  const auto trace = MakeFeatures({.sequences = 2, .seed = 5});
  HybridPredictor one(FittedModel());
  HybridPredictor other(FittedModel());
  Follow(one, *trace, 0);
  EXPECT_NE(Follow(one, *trace, 1), Follow(other, *trace, 1));
}

TEST(HybridPredictorTest, FewerDistancesGiveTheSameForThose) {
  const auto trace = MakeFeatures({.sequences = 1, .seed = 6});
  HybridPredictor predictor(FittedModel());
  std::vector<float> residual(testing::kSyntheticHidden);
  predictor.BeginToken(trace->TokenId(0, 0));
  trace->RouterState(0, 0, 0, residual);
  predictor.ObserveRouter(0, residual, trace->Chosen(0, 0, 0), {});
  for (const PredictionArm arm : {PredictionArm::kPreGate, PredictionArm::kProbe,
                                  PredictionArm::kForest, PredictionArm::kForestProbe}) {
    EXPECT_EQ(predictor.Evaluate(arm, 8), 4);  // five layers
    const std::vector<float> near = Copy(predictor.Probabilities(1));
    const std::vector<float> second = Copy(predictor.Probabilities(2));
    EXPECT_EQ(predictor.Evaluate(arm, 2), 2);
    EXPECT_THAT(predictor.Probabilities(1), ElementsAreArray(near));
    EXPECT_THAT(predictor.Probabilities(2), ElementsAreArray(second));
    EXPECT_THAT(near, SizeIs(8));
    for (const float p : near) {
      EXPECT_GE(p, 0);
      EXPECT_LE(p, 1);
    }
  }
}

TEST(HybridPredictorTest, NothingLiesBehindTheLastLayer) {
  HybridPredictor predictor(FittedModel());
  const std::vector<float> residual(testing::kSyntheticHidden, 1.0f);
  predictor.BeginToken(3);
  predictor.ObserveRouter(4, residual, {}, {});
  EXPECT_EQ(predictor.Evaluate(PredictionArm::kForestProbe, 8), 0);
}

TEST(HybridPredictorTest, NonsenseGivesProbabilitiesAllTheSame) {
  HybridPredictor predictor(FittedModel());
  std::vector<float> residual(testing::kSyntheticHidden, std::numeric_limits<float>::quiet_NaN());
  const std::vector<uint16_t> chosen = {65535, 7, 7, 7};
  const std::vector<float> weights = {-1, std::numeric_limits<float>::infinity()};
  for (int token = 0; token < 20; ++token) {
    predictor.BeginToken(token * 100'000'000 - 5);
    for (int32_t layer = 0; layer < 5; ++layer) {
      predictor.ObserveRouter(layer, residual, chosen, weights);
      predictor.ObserveExperts(layer, residual);
      const int32_t count = predictor.Evaluate(PredictionArm::kForestProbe, 8);
      for (int32_t d = 1; d <= count; ++d) {
        for (const float p : predictor.Probabilities(d)) ASSERT_TRUE(p >= 0 && p <= 1);
      }
    }
    residual[0] = static_cast<float>(std::pow(10.0, token));
  }
}

TEST(ByteMatrixTest, IsCloseToTheProduct) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr size_t kInputs = 37;
  constexpr size_t kOutputs = 600;
  std::vector<float> weight(kInputs * kOutputs), in(kInputs), bias(kOutputs);
  for (std::vector<float>* values : {&weight, &in, &bias}) {
    for (float& value : *values) value = normal(random);
  }
  const ByteMatrix matrix = MakeByteMatrix(kInputs, kOutputs, weight, bias);
  std::vector<float> out(kOutputs), first(590), parts = bias;
  ApplyMatrix(matrix, in, kOutputs, out.data());
  ApplyMatrix(matrix, in, first.size(), first.data());
  AddRows(matrix, 0, std::span(in).first(20), kOutputs, parts.data());
  AddRows(matrix, 20, std::span(in).subspan(20), kOutputs, parts.data());
  for (size_t o = 0; o < kOutputs; ++o) {
    double sum = bias[o];
    for (size_t i = 0; i < kInputs; ++i) sum += double{weight[i * kOutputs + o]} * in[i];
    EXPECT_NEAR(out[o], sum, 0.25);  // a byte's step of .02 an input
    EXPECT_NEAR(parts[o], out[o], 1e-3);
  }
  EXPECT_THAT(first, ElementsAreArray(out.data(), first.size()));
}

}  // namespace
}  // namespace expertflow
