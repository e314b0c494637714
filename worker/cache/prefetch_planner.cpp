#include "worker/cache/prefetch_planner.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace expertflow {

PrefetchPlanner::PrefetchPlanner(PrefetchPlannerOptions options, std::vector<int32_t> experts,
                                 int32_t top_k)
    : options_(options),
      top_k_(top_k),
      experts_(std::move(experts)),
      window_left_(options.bytes_per_window),
      next_pause_(options.pause_windows) {
  size_t total = 0;
  int32_t widest = 0;
  for (int32_t count : experts_) {
    layer_base_.push_back(total);
    total += static_cast<size_t>(count);
    widest = std::max(widest, count);
  }
  predicted_map_.assign(total, 0);
  layer_predicted_.assign(experts_.size(), 0);
  predicted_.reserve(static_cast<size_t>(widest));
  likely_.resize(static_cast<size_t>(widest));
  plan_.reserve(static_cast<size_t>(widest));
  stats_.active = options_.enabled;
}

void PrefetchPlanner::BeginWindow(LayerId layer, std::span<const LayerDemand> demands,
                                  const ExpertCacheStats& cache) {
  ++stats_.windows;
  window_left_ = options_.bytes_per_window;
  const size_t base = layer_base_[layer.index()];
  const auto count = static_cast<size_t>(experts_[layer.index()]);
  if (layer_predicted_[layer.index()] != 0) {
    for (const LayerDemand& demand : demands) {
      if (demand.decode_rows == 0) continue;
      ++stats_.routed;
      stats_.correct += predicted_map_[base + demand.expert.index()];
    }
    for (size_t e = base; e < base + count; ++e) stats_.predictions += predicted_map_[e];
    layer_predicted_[layer.index()] = 0;
  }

  const uint64_t used = cache.bytes_prefetch_used - seen_used_;
  const uint64_t wasted = cache.bytes_wasted - seen_wasted_;
  const uint64_t regret = cache.bytes_regret - seen_regret_;
  seen_used_ = cache.bytes_prefetch_used;
  seen_wasted_ = cache.bytes_wasted;
  seen_regret_ = cache.bytes_regret;
  const uint64_t cost = wasted * options_.waste_weight_percent / 100 + regret;
  stats_.benefit_bytes += used;
  stats_.cost_bytes += cost;
  if (!options_.enabled) return;
  if (!stats_.active) {
    if (pause_left_ > 0) --pause_left_;
    if (pause_left_ > 0) return;
    // Try again with a clean ledger.
    stats_.active = true;
    ++stats_.probes;
    period_benefit_ = period_cost_ = period_resolved_ = 0;
    digest_.Fold(uint64_t{1} << 56 | stats_.windows);
    return;
  }
  period_benefit_ += used;
  period_cost_ += cost;
  period_resolved_ += used + wasted;
  if (period_resolved_ >= options_.period_bytes) Judge();
}

void PrefetchPlanner::Judge() {
  if (period_cost_ > period_benefit_) {
    stats_.active = false;
    ++stats_.switch_offs;
    pause_left_ = next_pause_;
    next_pause_ = std::min(next_pause_ * 2, options_.pause_windows_max);
    digest_.Fold(uint64_t{2} << 56 | stats_.windows);
  } else {
    next_pause_ = options_.pause_windows;
  }
  period_benefit_ = period_cost_ = period_resolved_ = 0;
}

uint32_t PrefetchPlanner::ThresholdPpm(int32_t distance) const {
  const uint64_t farther = static_cast<uint64_t>(std::max(distance, 1) - 1);
  const uint64_t asked = options_.min_probability_ppm + farther * options_.distance_step_ppm;
  const uint64_t most = std::max(options_.min_probability_ppm, options_.max_probability_ppm);
  return static_cast<uint32_t>(std::min(asked, most));
}

void PrefetchPlanner::Insert(int32_t expert, uint32_t ppm, size_t most) {
  if (predicted_.size() == most) {
    if (most == 0 || ppm <= predicted_.back().probability_ppm) return;
    predicted_.pop_back();
  }
  predicted_.emplace_back();
  size_t at = predicted_.size() - 1;
  for (; at > 0 && predicted_[at - 1].probability_ppm < ppm; --at) {
    predicted_[at] = predicted_[at - 1];
  }
  predicted_[at] = {ExpertId(expert), ppm};
}

void PrefetchPlanner::FindMostLikely(std::span<const uint32_t> probabilities_ppm, size_t fewest) {
  predicted_.clear();
  // Without a branch that depends on the numbers, of which few are likely enough.
  size_t found = 0;
  for (size_t e = 0; e < probabilities_ppm.size(); ++e) {
    likely_[found] = static_cast<int32_t>(e);
    found += probabilities_ppm[e] >= options_.min_probability_ppm ? 1 : 0;
  }
  const auto top = static_cast<size_t>(top_k_);
  const size_t most = std::max(static_cast<size_t>(options_.max_per_target), top);
  for (const int32_t expert : std::span(likely_).first(found)) {
    Insert(expert, probabilities_ppm[static_cast<size_t>(expert)], most);
  }
  if (found >= fewest) return;
  for (size_t e = 0; e < probabilities_ppm.size(); ++e) {
    if (probabilities_ppm[e] >= options_.min_probability_ppm) continue;
    Insert(static_cast<int32_t>(e), probabilities_ppm[e], fewest);
  }
}

std::span<const PlannedPrefetch> PrefetchPlanner::Plan(LayerId target,
                                                       std::span<const uint32_t> probabilities_ppm,
                                                       const ExpertCache& cache) {
  CHECK(probabilities_ppm.size() == static_cast<size_t>(experts_[target.index()]));
  plan_.clear();
  const int32_t distance = cache.LayerDistance(target);
  const auto top_k = static_cast<size_t>(top_k_);
  FindMostLikely(probabilities_ppm, distance == 1 ? top_k : 0);
  const uint32_t threshold = ThresholdPpm(distance);
  if (distance == 1) {
    const auto base = predicted_map_.begin() + static_cast<ptrdiff_t>(layer_base_[target.index()]);
    std::fill(base, base + experts_[target.index()], uint8_t{0});
    for (size_t i = 0; i < std::min(predicted_.size(), top_k); ++i) {
      base[predicted_[i].expert.value] = 1;
    }
    layer_predicted_[target.index()] = 1;
  }
  if (!stats_.active) return plan_;

  size_t sure = 0;
  while (sure < predicted_.size() && predicted_[sure].probability_ppm >= threshold) ++sure;
  const size_t top = std::min(probabilities_ppm.size(), top_k);
  stats_.below_threshold += top - std::min(top, sure);
  for (const ExpertPrediction& p : std::span(predicted_).first(sure)) {
    const ExpertKey key{target, p.expert};
    if (cache.StateOf(key) != SlotState::kFree) continue;
    const uint64_t bytes = cache.BlockBytes(key);
    if (static_cast<int32_t>(plan_.size()) >= options_.max_per_target || bytes > window_left_) {
      ++stats_.over_budget;
      continue;
    }
    window_left_ -= bytes;
    ++stats_.planned;
    plan_.push_back({key, p.probability_ppm, stats_.windows + static_cast<uint64_t>(distance)});
    digest_.Fold(uint64_t{3} << 56 | static_cast<uint64_t>(target.value) << 40 |
                 static_cast<uint64_t>(p.expert.value));
  }
  return plan_;
}

Status PrefetchPlanner::CheckInvariants() const {
  if (stats_.correct > stats_.predictions || stats_.correct > stats_.routed) {
    return Internal("prefetch planner: more correct predictions than predictions");
  }
  if (stats_.active && !options_.enabled) {
    return Internal("prefetch planner: speculates although it is disabled");
  }
  return OkStatus();
}

}  // namespace expertflow
