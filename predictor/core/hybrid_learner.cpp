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
  size_t row = model.TokenRowOf(token);
  if (row == SIZE_MAX) {
    if (model.tokens.size() >= options_.tokens_max) return;
    // Only the ids are sorted: moving all rows of the prior for a new one would take longer than
    // a prediction.
    row = model.token_count.size();
    const auto at = std::lower_bound(model.tokens.begin(), model.tokens.end(), token);
    model.token_row.insert(model.token_row.begin() + (at - model.tokens.begin()),
                           static_cast<uint32_t>(row));
    model.tokens.insert(at, token);
    model.token_count.push_back(0);
    for (const float base : model.base) model.token_prior.push_back(TokenPriorOf(base));
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
    used_.assign(experts, 0.0f);
    for (const uint16_t expert : chosen) used_[expert] = 1;
    for (size_t e = 0; e < experts; ++e) {
      const float share = static_cast<float>(prior[base + e]) / 255;
      prior[base + e] = TokenPriorOf(share + weight * (used_[e] - share));
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
