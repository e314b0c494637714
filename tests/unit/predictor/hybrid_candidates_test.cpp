// What the forest is asked about layers of many experts, and what it is shown of them, against the
// plain words for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "predictor/core/byte_matrix.h"
#include "predictor/core/hybrid_predictor.h"

namespace expertflow {
namespace {

using ::testing::ElementsAreArray;

constexpr int32_t kHidden = 24;
constexpr int32_t kTopK = 5;
constexpr int32_t kWidth = 4;
constexpr int32_t kRank = 6;
constexpr int32_t kFrom = 3;
constexpr int32_t kDistances = 2;
constexpr size_t kMost = 12;  // candidates of a layer

class Draw {
 public:
  float Normal() { return normal_(random_); }
  int32_t Below(int32_t end) {
    return static_cast<int32_t>(random_() % static_cast<uint32_t>(end));
  }
  ByteMatrix Matrix(size_t inputs, size_t outputs) {
    std::vector<float> weight(inputs * outputs);
    for (float& w : weight) w = Normal();
    return MakeByteMatrix(inputs, outputs, weight, std::vector<float>(outputs));
  }
  RandomForest Forest(int32_t features) {
    RandomForest forest = {.trees = 9, .depth = 6, .features = features};
    for (size_t i = 0; i < 9 * forest.nodes(); ++i) {
      forest.feature.push_back(static_cast<uint8_t>(Below(features)));
      forest.threshold.push_back(static_cast<float>(Below(25)) / 5 - 2);
    }
    for (size_t i = 0; i < 9 * forest.leaves(); ++i) forest.leaf.push_back(Normal() / 8);
    return forest;
  }

 private:
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
};

std::shared_ptr<const HybridModel> WideModel(Draw* draw) {
  auto model = std::make_shared<HybridModel>();
  model->experts = {40, 33, 64, 50, 70, 37, 16};
  model->top_k = kTopK;
  model->hidden = kHidden;
  model->width = kWidth;
  model->rank = kRank;
  const auto layers = static_cast<size_t>(model->layers());
  for (ByteMatrix& anchor : model->anchor) anchor = draw->Matrix(kHidden, kWidth);
  model->context = draw->Matrix(kContextBlocks * kWidth, kRank);
  for (const int32_t experts : model->experts) {
    model->pre_gate.push_back(draw->Matrix(kHidden, static_cast<size_t>(experts)));
    for (int32_t e = 0; e < experts; ++e) {
      model->base.push_back(static_cast<float>(draw->Below(100)) / 100);
    }
  }
  for (int32_t kind = 0; kind < kStateKinds; ++kind) {
    const auto k = static_cast<size_t>(kind);
    for (int32_t l = 0; l + 1 < model->layers(); ++l) {
      const size_t outputs = model->BaseOf(l + 1 + model->DistancesFrom(l)) - model->BaseOf(l + 1);
      model->probe[k].push_back(draw->Matrix(kHidden + kRank, outputs));
    }
    model->forest[k] = draw->Forest(kForestOnlyFeatures);
    model->forest_probe[k] = draw->Forest(kHybridFeatures);
  }
  model->coactivation.resize(layers);
  for (size_t l = 0; l < layers; ++l) {
    for (size_t lag = 1; lag <= std::min<size_t>(l, kCoactivationLags); ++lag) {
      auto& table = model->coactivation[l][lag - 1];
      table.resize(static_cast<size_t>(model->experts[l]) *
                   static_cast<size_t>(model->experts[l - lag]));
      for (int8_t& lift : table) lift = static_cast<int8_t>(draw->Below(256) - 128);
    }
  }
  EXPECT_TRUE(CheckHybridModel(*model).ok()) << CheckHybridModel(*model).ToString();
  return model;
}

// Routers of the layers up to the source have been seen.
void Observe(const HybridModel& model, Draw* draw, HybridPredictor* predictor) {
  predictor->BeginToken(11);
  for (int32_t layer = 0; layer <= kFrom; ++layer) {
    std::vector<float> residual(kHidden);
    for (float& value : residual) value = draw->Normal();
    const int32_t experts = model.experts[static_cast<size_t>(layer)];
    const auto first = static_cast<uint16_t>(draw->Below(experts - kTopK));
    std::vector<uint16_t> chosen;
    for (uint16_t c = 0; c < kTopK; ++c) chosen.push_back(static_cast<uint16_t>(first + c));
    predictor->ObserveRouter(layer, residual, chosen, std::vector<float>(kTopK, 0.2f));
  }
}

float Rank(std::span<const float> margins, size_t expert) {
  return static_cast<float>(
      std::count_if(margins.begin(), margins.end(), [&](float m) { return m > margins[expert]; }));
}

float Lift(const HybridModel& model, const HybridPredictor& predictor, size_t target, size_t expert,
           int32_t layer) {
  const auto& table = model.coactivation[target][target - static_cast<size_t>(layer) - 1];
  float sum = 0;
  for (const uint16_t chosen : predictor.ChosenOf(layer)) {
    sum += table[chosen * static_cast<size_t>(model.experts[target]) + expert];
  }
  return sum;
}

TEST(HybridCandidatesTest, TheLikeliestThatAreNotSureAreAsked) {
  Draw draw;
  const auto model = WideModel(&draw);
  size_t cut = 0;
  for (int round = 0; round < 40; ++round) {
    HybridPredictor predictor(model);
    Observe(*model, &draw, &predictor);
    predictor.Evaluate(PredictionArm::kProbe, kDistances);
    std::vector<std::pair<int32_t, int32_t>> expected;
    for (int32_t d = 1; d <= kDistances; ++d) {
      const auto base = predictor.Probabilities(d);
      std::vector<int32_t> experts;
      for (size_t e = 0; e < base.size(); ++e) {
        if (base[e] >= 0.05f && base[e] <= 0.99f) experts.push_back(static_cast<int32_t>(e));
      }
      if (experts.size() > kMost) {
        ++cut;
        std::stable_sort(experts.begin(), experts.end(), [&](int32_t a, int32_t b) {
          return predictor.ProbeMargins(d)[static_cast<size_t>(a)] >
                 predictor.ProbeMargins(d)[static_cast<size_t>(b)];
        });
        experts.resize(kMost);
      }
      for (const int32_t e : experts) expected.emplace_back(d, e);
    }
    predictor.Evaluate(PredictionArm::kForestProbe, kDistances);
    std::vector<std::pair<int32_t, int32_t>> found;
    for (const auto& candidate : predictor.candidates()) {
      found.emplace_back(candidate.distance, candidate.expert);
    }
    EXPECT_EQ(found, expected);
  }
  EXPECT_GT(cut, 10u);  // it would show little otherwise
}

TEST(HybridCandidatesTest, FeaturesAreWhatTheyAreCalled) {
  Draw draw;
  const auto model = WideModel(&draw);
  HybridPredictor predictor(model);
  Observe(*model, &draw, &predictor);
  ASSERT_EQ(predictor.Evaluate(PredictionArm::kForestProbe, kDistances), kDistances);
  ASSERT_GT(predictor.candidates().size(), kMost);
  for (size_t i = 0; i < predictor.candidates().size(); ++i) {
    const auto& candidate = predictor.candidates()[i];
    const auto target = static_cast<size_t>(kFrom + candidate.distance);
    const auto expert = static_cast<size_t>(candidate.expert);
    const auto pre_gate = predictor.PreGateMargins(candidate.distance);
    const auto probe = predictor.ProbeMargins(candidate.distance);
    float far = 0;
    for (int32_t layer = 0; layer < kFrom; ++layer) {
      far += Lift(*model, predictor, target, expert, layer);
    }
    EXPECT_EQ(predictor.FeatureOf(i, kPreGateMargin), pre_gate[expert]);
    EXPECT_EQ(predictor.FeatureOf(i, kPreGateRank), Rank(pre_gate, expert));
    EXPECT_EQ(predictor.FeatureOf(i, kProbeMargin), probe[expert]);
    EXPECT_EQ(predictor.FeatureOf(i, kProbeRank), Rank(probe, expert));
    EXPECT_EQ(predictor.FeatureOf(i, kProbeProbability), candidate.base);
    EXPECT_EQ(predictor.FeatureOf(i, kCoactivationNear),
              Lift(*model, predictor, target, expert, kFrom));
    EXPECT_EQ(predictor.FeatureOf(i, kCoactivationFar), far);
    EXPECT_EQ(predictor.FeatureOf(i, kTokenPrior),
              model->base[model->BaseOf(static_cast<int32_t>(target)) + expert]);
    EXPECT_EQ(predictor.FeatureOf(i, kDistance), static_cast<float>(candidate.distance));
    EXPECT_EQ(predictor.FeatureOf(i, kSource), static_cast<float>(kFrom));
  }
}

TEST(HybridCandidatesTest, WhatTheSequenceHasDoneIsShownAsItIsCalled) {
  Draw draw;
  const auto model = WideModel(&draw);
  HybridPredictor predictor(model);
  std::vector<std::vector<float>> states;  // of the first layer, by token
  std::vector<std::vector<float>> use(3, std::vector<float>(model->BaseOf(model->layers())));
  for (int32_t token = 0; token < 20; ++token) {
    predictor.BeginToken(token);
    for (int32_t layer = 0; layer < model->layers(); ++layer) {
      std::vector<float> residual(kHidden);
      for (float& value : residual) value = draw.Normal();
      const int32_t experts = model->experts[static_cast<size_t>(layer)];
      const auto first = static_cast<uint16_t>(draw.Below(experts - kTopK));
      std::vector<uint16_t> chosen;
      for (uint16_t c = 0; c < kTopK; ++c) chosen.push_back(static_cast<uint16_t>(first + c));
      predictor.ObserveRouter(layer, residual, chosen, std::vector<float>(kTopK, 0.2f));
      if (layer == 0) {
        states.emplace_back(predictor.input().begin(), predictor.input().begin() + kHidden);
      }
      if (layer != kFrom) continue;
      float nearest = INFINITY;
      for (size_t other = states.size() < 9 ? 0 : states.size() - 9; other + 1 < states.size();
           ++other) {
        float squares = 0;
        for (size_t i = 0; i < kHidden; ++i) {
          const float difference = states.back()[i] - states[other][i];
          squares += difference * difference;
        }
        nearest = std::min(nearest, squares);
      }
      ASSERT_EQ(predictor.Evaluate(PredictionArm::kForestProbe, kDistances), kDistances);
      ASSERT_FALSE(predictor.candidates().empty());
      for (size_t i = 0; i < predictor.candidates().size(); ++i) {
        const auto& candidate = predictor.candidates()[i];
        const size_t expert =
            model->BaseOf(kFrom + candidate.distance) + static_cast<size_t>(candidate.expert);
        EXPECT_EQ(predictor.FeatureOf(i, kTokenDistance),
                  states.size() > 1 ? std::sqrt(nearest) : -1.0f);
        EXPECT_EQ(predictor.FeatureOf(i, kUse1), use[0][expert]);
        EXPECT_EQ(predictor.FeatureOf(i, kUse8), use[1][expert]);
        EXPECT_EQ(predictor.FeatureOf(i, kUse64), use[2][expert]);
      }
    }
    for (size_t half = 0; half < use.size(); ++half) {
      const float decay = std::exp2(-1.0f / kUseHalfLives[half]);
      for (float& value : use[half]) value *= decay;
      for (int32_t layer = 0; layer < model->layers(); ++layer) {
        for (const uint16_t c : predictor.ChosenOf(layer)) {
          use[half][model->BaseOf(layer) + c] += 1 - decay;
        }
      }
    }
  }
}

TEST(HybridCandidatesTest, TogetherAndAsBytesTheForestSaysTheSame) {
  Draw draw;
  const auto model = WideModel(&draw);
  const auto forests = std::make_shared<const HybridForests>(*model);
  std::vector<std::unique_ptr<HybridPredictor>> plain;
  std::vector<std::unique_ptr<HybridPredictor>> quick;
  std::vector<HybridPredictor*> together;
  for (int s = 0; s < 5; ++s) {
    Draw same = draw;
    plain.push_back(std::make_unique<HybridPredictor>(model));
    Observe(*model, &same, plain.back().get());
    quick.push_back(std::make_unique<HybridPredictor>(model, forests));
    Observe(*model, &draw, quick.back().get());
    together.push_back(quick.back().get());
  }
  for (const PredictionArm arm : {PredictionArm::kForestProbe, PredictionArm::kForest}) {
    HybridPredictor::EvaluateTogether(together, arm, kDistances);
    for (size_t s = 0; s < plain.size(); ++s) {
      plain[s]->Evaluate(arm, kDistances);
      const RandomForest& forest =
          arm == PredictionArm::kForest ? model->forest[0] : model->forest_probe[0];
      std::vector<float> correction(plain[s]->candidates().size());
      std::vector<float> features;
      for (size_t i = 0; i < correction.size(); ++i) {
        for (int32_t f = 0; f < forest.features; ++f) {
          features.push_back(plain[s]->FeatureOf(i, f));
        }
      }
      EvaluateForest(forest, features.data(), static_cast<size_t>(forest.features), correction);
      for (size_t i = 0; i < correction.size(); ++i) {
        const auto& candidate = plain[s]->candidates()[i];
        EXPECT_EQ(
            plain[s]->Probabilities(candidate.distance)[static_cast<size_t>(candidate.expert)],
            std::clamp(candidate.base + correction[i], 0.0f, 1.0f));
      }
      for (int32_t d = 1; d <= kDistances; ++d) {
        EXPECT_THAT(quick[s]->Probabilities(d), ElementsAreArray(plain[s]->Probabilities(d)));
      }
    }
  }
}

}  // namespace
}  // namespace expertflow
