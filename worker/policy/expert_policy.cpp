#include "worker/policy/expert_policy.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace expertflow {
namespace {

// How many experts a prediction speaks of: the sum of the chances.
int32_t ExpectedExperts(std::span<const uint32_t> probabilities_ppm) {
  uint64_t sum = 0;
  for (const uint32_t p : probabilities_ppm) sum += p;
  return static_cast<int32_t>((sum + 500'000) / 1'000'000);
}

// Of the windows in which the cache is compared with the best one, in passes over the layers: an
// eighth of the time.
constexpr int32_t kSamplePasses = 64;
constexpr int32_t kCountedPasses = 48;
constexpr int32_t kPausePasses = 448;

// Fewer blocks than that are judged by chance.
constexpr uint64_t kPeriodBlocks = 256;
constexpr uint64_t kPeriodBytesMin = 64ull << 20;

bool DemandsDecode(std::span<const LayerDemand> demands) {
  return std::any_of(demands.begin(), demands.end(),
                     [](const LayerDemand& d) { return d.decode_rows > 0; });
}

uint64_t LargestBlock(const ExpertCacheOptions& cache) {
  uint64_t largest = 0;
  for (const uint64_t bytes : cache.block_bytes) largest = std::max(largest, bytes);
  return largest;
}

ExpertPolicyOptions WithPeriod(ExpertPolicyOptions options) {
  if (options.prefetch.period_bytes > 0) return options;
  options.prefetch.period_bytes =
      std::max(kPeriodBytesMin, kPeriodBlocks * LargestBlock(options.cache));
  return options;
}

}  // namespace

ExpertPolicy::ExpertPolicy(ExpertPolicyOptions options, std::unique_ptr<StrideController> stride)
    : options_(WithPeriod(std::move(options))),
      cache_(options_.cache),
      planner_(options_.prefetch, options_.cache.experts, options_.cache.top_k),
      stride_(std::move(stride)) {
  CHECK(stride_ != nullptr);
  int32_t moe_layers = 0;
  size_t all = 0;
  for (const int32_t experts : options_.cache.experts) {
    layer_order_.push_back(experts > 0 ? moe_layers++ : -1);
    layer_base_.push_back(all);
    all += static_cast<size_t>(experts);
  }
  if (options_.weighs_prefetch && moe_layers > 0) {
    trial_ = std::make_unique<PrefetchTrial>(PrefetchTrialOptions{.moe_layers = moe_layers});
  }
  if (options_.weighs_prefetch) {
    lead_cost_ =
        std::make_unique<LeadCost>(LeadCostOptions{.expert_bytes = LargestBlock(options_.cache)});
  }
  if (options_.samples_best_cache && moe_layers > 0) {
    best_ = std::make_unique<BestCacheSample>(
        BestCacheSampleOptions{.experts = all,
                               .slot_class = options_.cache.slot_class,
                               .slots = options_.cache.slots,
                               .window_events = kSamplePasses * moe_layers,
                               .counted_events = kCountedPasses * moe_layers,
                               .pause_events = kPausePasses * moe_layers});
  }
  if (options_.forecaster != nullptr) {
    CHECK(ForecasterFits(*options_.forecaster, options_.cache.experts));
    ranks_ = std::make_unique<ForecastRanks>(options_.forecaster, cache_.slots(),
                                             options_.sequences_max);
  }
}

bool ExpertPolicy::ForecasterFits(const NextUseModel& model, std::span<const int32_t> experts) {
  std::vector<int32_t> moe(experts.begin(), experts.end());
  std::erase(moe, 0);
  return moe == model.experts;
}

void ExpertPolicy::Observe(LayerId layer, std::span<const RoutedRow> rows, int32_t distinct) {
  if (ranks_ == nullptr || rows.empty()) return;
  ranks_->Observe(layer_order_[layer.index()], rows, distinct);
  observed_ = true;
}

void ExpertPolicy::UseForecast() {
  if (ranks_ == nullptr || forecast_used_) return;
  forecast_used_ = true;
  cache_.UseForecast(observed_ ? ranks_->Distances() : std::span<const uint32_t>());
}

std::span<const SlotRef> ExpertPolicy::Begin(LayerId layer, std::span<const LayerDemand> demands) {
  layer_ = layer;
  demands_ = demands;
  if (!DemandsDecode(demands)) return {};
  const std::span<const SlotRef> wrong = cache_.WrongPrefetches(layer, demands);
  planner_.BeginWindow(layer, demands, cache_.stats());
  return wrong;
}

std::span<const DemandDecision> ExpertPolicy::Decide() {
  const bool absent = std::any_of(demands_.begin(), demands_.end(), [&](const LayerDemand& d) {
    return cache_.StateOf({layer_, d.expert}) == SlotState::kFree;
  });
  if (absent) UseForecast();
  const bool sampled = best_ != nullptr && DemandsDecode(demands_);
  if (sampled && best_->WantsBegin()) BeginSample();
  const std::span<const DemandDecision> decisions = cache_.BeginLayer(layer_, demands_);
  if (sampled) Sample(decisions);
  return decisions;
}

void ExpertPolicy::BeginSample() {
  sample_uses_.clear();
  for (int32_t s = 0; s < cache_.slots(); ++s) {
    const ExpertKey key = cache_.KeyOf(SlotId(s));
    if (!key.layer.valid()) continue;
    sample_uses_.push_back(layer_base_[key.layer.index()] + key.expert.index());
  }
  best_->Begin(sample_uses_);
}

void ExpertPolicy::Sample(std::span<const DemandDecision> decisions) {
  sample_uses_.clear();
  uint64_t misses = 0;
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (demands_[i].decode_rows == 0) continue;
    sample_uses_.push_back(layer_base_[layer_.index()] + demands_[i].expert.index());
    const DemandOutcome outcome = decisions[i].outcome;
    misses += outcome == DemandOutcome::kLoad || outcome == DemandOutcome::kBypass ? 1 : 0;
  }
  // Only a guarded cache keeps plain LRU beside itself; one that ranks by recency is plain LRU.
  const bool guarded = options_.cache.ranking == CacheRanking::kGuarded;
  const uint64_t lru = cache_.stats().lru_misses;
  const uint64_t lru_misses = lru - std::exchange(lru_misses_before_, lru);
  best_->OnEvent(sample_uses_, misses, guarded ? lru_misses : misses);
}

std::span<const PrefetchLoad> ExpertPolicy::Prefetch(LayerId target,
                                                     std::span<const uint32_t> probabilities_ppm) {
  loads_.clear();
  const std::span<const PlannedPrefetch> plans = planner_.Plan(target, probabilities_ppm, cache_);
  if (!plans.empty()) UseForecast();
  for (const PlannedPrefetch& plan : plans) {
    const PrefetchDecision decision = cache_.TryPrefetch(plan.key, plan.probability_ppm);
    if (decision.slot.valid()) {
      loads_.push_back({plan, decision.slot});
    } else {
      planner_.OnRefused(cache_.BlockBytes(plan.key));
    }
  }
  if (expected_experts_ == 0) expected_experts_ = ExpectedExperts(probabilities_ppm);
  for (const ExpertPrediction& p : planner_.predicted()) {
    const ExpertKey key{target, p.expert};
    if (p.probability_ppm < options_.prefetch.min_probability_ppm) break;
    if (cache_.StateOf(key) != SlotState::kFree) cache_.NotePrediction(key, p.probability_ppm);
  }
  return loads_;
}

void ExpertPolicy::End(const EventTimes& times) {
  cache_.EndLayer();
  Measure(times);
  observed_ = false;
  forecast_used_ = false;
  expected_experts_ = 0;
}

void ExpertPolicy::Measure(const EventTimes& times) {
  const ExpertCacheStats& now = cache_.stats();
  StrideMeasurement measured;
  bool decodes_only = !demands_.empty();
  for (const LayerDemand& demand : demands_) decodes_only &= demand.prefill_rows == 0;
  measured.distinct_experts = static_cast<int32_t>(demands_.size());
  // A prefetched block counts as one that the cache did not have.
  const uint64_t found = now.hits - before_.hits;
  const uint64_t prefetched = now.prefetch_hits - before_.prefetch_hits;
  measured.cached_experts = static_cast<int32_t>(found - std::min(found, prefetched));
  measured.prefetch_hits = static_cast<int32_t>(prefetched);
  measured.prefetch_late_hits =
      static_cast<int32_t>(now.prefetch_late_hits - before_.prefetch_late_hits);
  measured.expected_experts = expected_experts_;
  measured.bytes_copied = times.bytes_copied;
  measured.bytes_wasted = now.bytes_wasted - before_.bytes_wasted;
  measured.link_busy_ns = times.link_busy_ns;
  measured.layer_ns = times.layer_ns;
  measured.stall_ns = times.stall_ns;
  before_ = now;
  if (!decodes_only) return;
  stride_->OnLayer(measured);
  if (trial_ != nullptr) trial_->OnLayer(times.layer_ns);
  if (lead_cost_ != nullptr) {
    lead_cost_->OnLayer({.predicted = times.predicted,
                         .prediction_ns = times.prediction_ns,
                         .compute_ns = times.layer_ns - times.stall_ns,
                         .link_busy_ns = times.link_busy_ns,
                         .bytes_copied = times.bytes_copied});
  }
}

bool ExpertPolicy::CloseSlots(int32_t count) {
  if (!cache_.CloseSlots(count)) return false;
  FollowSlots();
  return true;
}

void ExpertPolicy::OpenSlots(int32_t count) {
  cache_.OpenSlots(count);
  FollowSlots();
}

void ExpertPolicy::FollowSlots() {
  if (best_ != nullptr) best_->SetSlots(cache_.slots_of(cache_.slot_classes() - 1));
  if (ranks_ != nullptr) ranks_->SetSlots(cache_.slots());
}

int32_t ExpertPolicy::lookahead() const {
  const bool useful = cache_.slots() > 0 && !cache_.AllResident() && planner_.active() &&
                      (trial_ == nullptr || trial_->on());
  if (!useful) return 0;
  if (lead_cost_ == nullptr) return stride_->stride();
  return std::max(lead_cost_->Most(stride_->stride()), options_.lead_min);
}

Status ExpertPolicy::CheckInvariants() const {
  RETURN_IF_ERROR(cache_.CheckInvariants());
  return planner_.CheckInvariants();
}

}  // namespace expertflow
