#include "predictor/core/hybrid_learner.h"

#include <algorithm>
#include <cmath>

namespace expertflow {
namespace {

constexpr float kLeafMax = 1;  // a correction of more would mean nothing

}  // namespace

HybridLearner::HybridLearner(const HybridModel& model, const HybridLearnerOptions& options)
    : options_(options), model_(std::make_shared<HybridModel>(model)), shared_(model_) {
  const size_t rows = std::max(options_.tokens_max, model_->tokens.size());
  model_->tokens.reserve(rows);
  model_->token_count.reserve(rows);
  model_->token_prior.reserve(rows * model_->experts_total());
}

void HybridLearner::LearnToken(int32_t token, const HybridPredictor& predictor) {
  if (token < 0) return;
  HybridModel& model = *model_;
  const size_t total = model.experts_total();
  const auto found = std::lower_bound(model.tokens.begin(), model.tokens.end(), token);
  const auto row = static_cast<size_t>(found - model.tokens.begin());
  if (found == model.tokens.end() || *found != token) {
    if (model.tokens.size() >= options_.tokens_max) return;
    model.tokens.insert(found, token);
    model.token_count.insert(model.token_count.begin() + static_cast<ptrdiff_t>(row), 0);
    const auto at = model.token_prior.begin() + static_cast<ptrdiff_t>(row * total);
    const auto first = model.token_prior.insert(at, total, 0);
    for (size_t i = 0; i < total; ++i) {
      first[static_cast<ptrdiff_t>(i)] = TokenPriorOf(model.base[i]);
    }
  }
  uint32_t& count = model.token_count[row];
  if (count >= options_.token_count_max) return;
  // As if fitted with one use more: a running mean that begins with the base rate.
  const float weight = 1.0f / (static_cast<float>(count) + 1 + kTokenPriorStrength);
  uint8_t* prior = model.token_prior.data() + row * total;
  for (int32_t layer = 0; layer < model.layers(); ++layer) {
    const auto chosen = predictor.ChosenOf(layer);
    const size_t base = model.BaseOf(layer);
    const auto experts = static_cast<size_t>(model.experts[static_cast<size_t>(layer)]);
    for (size_t e = 0; e < experts; ++e) {
      const bool used = std::find(chosen.begin(), chosen.end(), e) != chosen.end();
      const float share = static_cast<float>(prior[base + e]) / 255;
      prior[base + e] = TokenPriorOf(share + weight * ((used ? 1.0f : 0.0f) - share));
    }
  }
  ++count;
}

void HybridLearner::LearnLeaves(std::span<const uint16_t> leaves, float error) {
  RandomForest& forest = model_->forest_probe[static_cast<size_t>(StateKind::kRouter)];
  if (leaves.size() != static_cast<size_t>(forest.trees) || !std::isfinite(error)) return;
  for (size_t tree = 0; tree < leaves.size(); ++tree) {
    float& leaf = forest.leaf[tree * forest.leaves() + leaves[tree]];
    leaf = std::clamp(leaf + options_.leaf_rate * error, -kLeafMax, kLeafMax);
  }
}

}  // namespace expertflow
