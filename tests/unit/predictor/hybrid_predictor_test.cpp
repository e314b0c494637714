// The state of a sequence, and what evaluation promises, whatever it is fed.
#include "predictor/core/hybrid_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "predictor/core/byte_matrix.h"
#include "tests/unit/predictor/hybrid_testing.h"

namespace expertflow {
namespace {

using ::testing::Each;
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

TEST(HybridPredictorTest, SequencesTogetherGiveWhatEachGivesAlone) {
  constexpr size_t kSequences =
      21;  // more than are multiplied together, and not a multiple of four
  const auto trace = MakeFeatures({.sequences = kSequences, .seed = 5});
  std::vector<std::unique_ptr<HybridPredictor>> predictors;
  std::vector<HybridPredictor*> together;
  std::vector<float> residual(testing::kSyntheticHidden);
  std::vector<float> weights(testing::kSyntheticTopK);
  for (size_t s = 0; s < kSequences; ++s) {
    predictors.push_back(std::make_unique<HybridPredictor>(FittedModel()));
    together.push_back(predictors.back().get());
    Follow(*together[s], *trace, s);
    together[s]->BeginToken(trace->TokenId(s, 0));
    trace->RouterState(s, 0, 0, residual);
    trace->Weights(s, 0, 0, weights);
    together[s]->ObserveRouter(0, residual, trace->Chosen(s, 0, 0), weights);
  }
  ASSERT_EQ(HybridPredictor::EvaluateTogether(together, PredictionArm::kForestProbe, 3), 3);
  for (HybridPredictor* predictor : together) {
    for (int32_t d = 1; d <= 3; ++d) {
      const std::vector<float> found = Copy(predictor->Probabilities(d));
      predictor->Evaluate(PredictionArm::kForestProbe, 3);
      EXPECT_EQ(Copy(predictor->Probabilities(d)), found);
    }
  }
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

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(ByteMatrixTest, IsCloseToTheProduct) {
  constexpr size_t kInputs = 37;
  constexpr size_t kOutputs = 603;
  const std::vector<float> weight = Normal(kInputs * kOutputs, 3);
  const std::vector<float> bias = Normal(kOutputs, 4);
  const ByteMatrix matrix = MakeByteMatrix(kInputs, kOutputs, weight, bias);
  // Of seven rows four are multiplied together, the others one by one.
  constexpr size_t kRows = 7;
  const std::vector<float> in = Normal(kRows * kInputs, 5);
  std::vector<int16_t> steps(in.size());
  std::vector<float> out(kRows * kOutputs);
  std::vector<StepRow> rows;
  std::vector<float*> to;
  for (size_t r = 0; r < kRows; ++r) {
    rows.push_back(ToSteps(std::span(in).subspan(r * kInputs, kInputs), &steps[r * kInputs]));
    to.push_back(&out[r * kOutputs]);
  }
  ApplyMatrix(matrix, kOutputs, rows, to);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOutputs; ++o) {
      double sum = bias[o];
      for (size_t i = 0; i < kInputs; ++i) {
        sum += double{weight[i * kOutputs + o]} * in[r * kInputs + i];
      }
      EXPECT_NEAR(out[r * kOutputs + o], sum, 0.25);  // a byte's step of .02 an input
    }
    // Alone, and the first outputs only: the same.
    std::vector<float> alone(590);
    float* const alone_to = alone.data();
    ApplyMatrix(matrix, alone.size(), {&rows[r], 1}, {&alone_to, 1});
    EXPECT_THAT(alone, ElementsAreArray(to[r], alone.size()));
    // In two parts of the inputs: so far as their sums are rounded.
    std::vector<float> parts = bias;
    float* const parts_to = parts.data();
    for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 20}, {20, kInputs - 20}}) {
      const StepRow part = {rows[r].step + first, rows[r].size};
      AddProducts(matrix, first, count, kOutputs, {&part, 1}, {&parts_to, 1});
    }
    for (size_t o = 0; o < kOutputs; ++o) EXPECT_NEAR(parts[o], to[r][o], 1e-4);
  }
}

TEST(ByteMatrixTest, StepsAreCloseAndSumsDoNotOverflow) {
  constexpr size_t kInputs = 20'000;
  const std::vector<float> in(kInputs, -3.0f);
  std::vector<int16_t> steps(kInputs);
  const StepRow row = ToSteps(in, steps.data());
  EXPECT_NEAR(row.size * static_cast<float>(steps[7]), -3.0f, 1e-5);
  const ByteMatrix matrix =
      MakeByteMatrix(kInputs, 1, std::vector<float>(kInputs, -2.0f), std::vector<float>(1, 0.0f));
  float sum = 0;
  float* const to = &sum;
  ApplyMatrix(matrix, 1, {&row, 1}, {&to, 1});
  EXPECT_NEAR(sum, 6.0f * kInputs, 1);
}

TEST(ByteMatrixTest, WhatIsNoNumberBecomesZeros) {
  for (const float nonsense : {std::numeric_limits<float>::quiet_NaN(), INFINITY, 1e-44f}) {
    std::vector<float> in(40, 0.0f);
    in[33] = nonsense;
    std::vector<int16_t> steps(40, 1);
    EXPECT_EQ(ToSteps(in, steps.data()).size, 0);
    EXPECT_THAT(steps, Each(0));
  }
}

}  // namespace
}  // namespace expertflow
