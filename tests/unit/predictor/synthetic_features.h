// A trace with features of a made-up model, for tests of what is fitted to such traces. The state
// of a token drifts from layer to layer by a fixed rotation, which a linear map can learn and the
// pre-gate cannot see, and leans towards what the sequence is about, which the context shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "common/half.h"
#include "predictor/feature_trace.h"

namespace expertflow::testing {

struct SyntheticFeatures {
  size_t sequences = 60;
  size_t tokens = 40;  // of each
  uint32_t seed = 1;   // of the text; the model is always the same
  int32_t layers = 5;
};

inline constexpr int32_t kSyntheticHidden = 12;
inline constexpr int32_t kSyntheticExperts = 8;
inline constexpr int32_t kSyntheticTopK = 2;

inline std::unique_ptr<FeatureTrace> MakeFeatures(const SyntheticFeatures& options) {
  constexpr auto kHidden = static_cast<size_t>(kSyntheticHidden);
  constexpr auto kExperts = static_cast<size_t>(kSyntheticExperts);
  constexpr auto kTopK = static_cast<size_t>(kSyntheticTopK);
  constexpr size_t kVocabulary = 20;
  const auto layers = static_cast<size_t>(options.layers);
  std::mt19937 model(99);
  std::normal_distribution<float> normal;
  std::vector<float> embedding(kVocabulary * kHidden), router(layers * kExperts * kHidden);
  for (float& value : embedding) value = normal(model);
  for (float& value : router) value = normal(model);

  TraceShape shape;
  shape.experts.assign(layers, kSyntheticExperts);
  shape.layer_ids.resize(layers);
  std::iota(shape.layer_ids.begin(), shape.layer_ids.end(), 0);
  shape.top_k = kSyntheticTopK;
  shape.hidden = kSyntheticHidden;
  shape.columns = kTraceColumnsKnown;
  shape.fingerprint[0] = 7;
  shape.model = "synthetic";
  auto trace = std::make_unique<FeatureTrace>();
  EXPECT_TRUE(trace->Begin(shape).ok());

  std::mt19937 text(options.seed);
  for (size_t s = 0; s < options.sequences; ++s) {
    EXPECT_TRUE(trace->Sequence({.id = s, .label = {}}).ok());
    std::vector<float> topic(kHidden);
    for (float& value : topic) value = 0.7f * normal(text);
    TraceRows rows;
    for (size_t at = 0; at < options.tokens; ++at) {
      const size_t token = text() % kVocabulary;
      rows.step.push_back(static_cast<uint32_t>(at));
      rows.sequence.push_back(static_cast<uint32_t>(s));
      rows.position.push_back(static_cast<uint32_t>(at));
      rows.token.push_back(static_cast<int32_t>(token));
      rows.flags.push_back(0);
      std::vector<float> state(kHidden);
      for (size_t h = 0; h < kHidden; ++h) {
        state[h] = embedding[token * kHidden + h] + 0.2f * normal(text);
      }
      for (size_t l = 0; l < layers; ++l) {
        // What the router sees, and half a layer later.
        for (const bool router_sees : {true, false}) {
          const float angle = 0.35f;
          for (size_t h = 0; h + 1 < kHidden; h += 2) {
            const float a = state[h];
            const float b = state[h + 1];
            state[h] = std::cos(angle) * a - std::sin(angle) * b + 0.1f * topic[h];
            state[h + 1] = std::sin(angle) * a + std::cos(angle) * b + 0.1f * topic[h + 1];
          }
          auto& column = router_sees ? rows.router_hidden : rows.expert_residual;
          for (const float value : state) column.push_back(HalfFromFloat(3 * value));
          if (!router_sees) continue;
          float squares = 0;
          for (const float value : state) squares += value * value;
          const float scale = 1 / std::sqrt(squares / static_cast<float>(kHidden));
          std::vector<float> scores(kExperts);
          for (size_t e = 0; e < kExperts; ++e) {
            for (size_t h = 0; h < kHidden; ++h) {
              scores[e] += router[(l * kExperts + e) * kHidden + h] * state[h] * scale;
            }
            rows.scores.push_back(HalfFromFloat(scores[e]));
          }
          std::vector<uint16_t> order(kExperts);
          std::iota(order.begin(), order.end(), uint16_t{0});
          std::sort(order.begin(), order.end(),
                    [&](uint16_t a, uint16_t b) { return scores[a] > scores[b]; });
          for (size_t k = 0; k < kTopK; ++k) {
            rows.experts.push_back(order[k]);
            rows.weights.push_back(HalfFromFloat(k == 0 ? 0.6f : 0.4f));
          }
        }
      }
    }
    EXPECT_TRUE(trace->Rows(rows).ok());
  }
  return trace;
}

}  // namespace expertflow::testing
