#include "worker/policy/forecast_ranks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr double kSmallestRatio = 1e-6;
// The map is made anew when slots/demand has moved by this much (of its logarithm).
constexpr double kRatioStep = 0.15;
constexpr double kDemandShare = 1.0 / 64;  // of a new pass in the smoothed demand
// Of all sequences together. Each takes a step for the token that they decode at once: many of them
// take smaller ones, or they would overshoot.
constexpr float kLearningRateOfAll = 1.0f / 16;

}  // namespace

ForecastRanks::ForecastRanks(std::shared_ptr<const NextUseModel> model, int32_t slots,
                             size_t sequences_max, float learning_rate)
    : model_(std::move(model)),
      slots_(slots),
      corrections_(*model_,
                   std::min(learning_rate, kLearningRateOfAll / static_cast<float>(sequences_max))),
      sequences_(sequences_max) {
  distance_.resize(static_cast<size_t>(model_->experts_total()));
}

void ForecastRanks::FollowDemand(int32_t layer, int32_t distinct) {
  pass_demand_ += distinct;
  if (layer + 1 < static_cast<int32_t>(model_->experts.size())) return;
  demand_ = demand_ == 0 ? pass_demand_ : demand_ + (pass_demand_ - demand_) * kDemandShare;
  pass_demand_ = 0;
}

void ForecastRanks::FollowHorizon(int32_t layer, int32_t distinct) {
  if (layer != 0 && map_) return;
  const double demand =
      demand_ > 0 ? demand_
                  : static_cast<double>(distinct) * static_cast<double>(model_->experts.size());
  const double ratio = std::max(slots_ / std::max(demand, 1.0), kSmallestRatio);
  if (map_ && std::abs(std::log(ratio / map_ratio_)) <= kRatioStep) return;
  map_.emplace(model_, ratio);
  map_ratio_ = ratio;
}

void ForecastRanks::Observe(int32_t layer, std::span<const RoutedRow> rows, int32_t distinct) {
  sequences_.BeginEvent();
  layer_ = layer;
  active_.clear();
  FollowHorizon(layer, distinct);
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    while (end < rows.size() && rows[end].sequence == rows[i].sequence) ++end;
    NextUseForecaster& forecaster = sequences_.Use(rows[i].sequence, *map_, &corrections_);
    if (rows[i].prefill) {
      prompt_.clear();
      for (size_t row = i; row < end; ++row) prompt_.push_back(rows[row].routed);
      forecaster.ObservePrompt(layer, prompt_);
    } else {
      forecaster.Observe(layer, rows[i].routed.chosen, rows[i].routed.weights);
      active_.push_back(&forecaster);
    }
    i = end;
  }
  if (!active_.empty()) FollowDemand(layer, distinct);
}

std::span<const uint32_t> ForecastRanks::Distances() {
  if (active_.empty()) return {};
  ExpectedDistances(*map_, layer_, active_, distance_);
  return distance_;
}

}  // namespace expertflow
