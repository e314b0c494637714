// All that decides which experts are where on one device: cache, prefetch planner, next-use
// forecast and stride, joined in the order that a (step, layer) event needs. The worker's executor
// and the simulator drive the same object, one with real copies, the other with simulated ones. A
// pure policy: the driver serialises all calls.
//
// One event:
//   Observe()   what the routers chose; the forecast follows it
//   Begin()     which loads under way are now known to be in vain: the driver cancels them
//   Decide()    a slot, a load or a bypass for each demanded expert
//   Prefetch()  for each later layer, nearest first, as many as lookahead() asks for
//   End()       with what was measured
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "predictor/core/stride_controller.h"
#include "worker/cache/expert_cache.h"
#include "worker/cache/prefetch_planner.h"
#include "worker/policy/best_cache_sample.h"
#include "worker/policy/forecast_ranks.h"
#include "worker/policy/lead_cost.h"
#include "worker/policy/prefetch_trial.h"

namespace expertflow {

struct ExpertPolicyOptions {
  ExpertCacheOptions cache;
  PrefetchPlannerOptions prefetch;
  std::shared_ptr<const NextUseModel> forecaster;  // null: the cache's own estimate
  size_t sequences_max = 64;                       // whose forecasts are kept
  bool samples_best_cache = false;                 // see BestCacheSample
  bool weighs_prefetch = false;                    // see PrefetchTrial and LeadCost
  int32_t lead_min = 1;                            // which LeadCost leaves
};

// What the driver measured of one event.
struct EventTimes {
  int64_t layer_ns = 0;       // end of the layer before to the end of this one; 0: not known
  int64_t stall_ns = 0;       // of that, compute waited for an expert
  int64_t link_busy_ns = 0;   // since the event before
  uint64_t bytes_copied = 0;  // since the event before
  int32_t predicted = 0;      // layers ahead that were predicted
  int64_t prediction_ns = 0;  // what that took, for all of them
};

// A load that Prefetch() has given a slot to.
struct PrefetchLoad {
  PlannedPrefetch plan;
  SlotRef slot;
};

class ExpertPolicy {
 public:
  // `stride` decides how far ahead; not null. REQUIRES: a forecaster is one of a model of these
  // experts (ForecasterFits())
  ExpertPolicy(ExpertPolicyOptions options, std::unique_ptr<StrideController> stride);

  // Whether a forecaster was made for layers of these sizes; `experts` as in ExpertCacheOptions.
  static bool ForecasterFits(const NextUseModel& model, std::span<const int32_t> experts);

  // Touches the forecast alone, so it may run beside the driver's reports of copies. Without a
  // forecaster it does nothing. REQUIRES: `rows` as in ForecastRanks::Observe()
  void Observe(LayerId layer, std::span<const RoutedRow> rows, int32_t distinct);

  // Valid until the next Begin(). REQUIRES: `demands` stays as it is until End()
  std::span<const SlotRef> Begin(LayerId layer, std::span<const LayerDemand> demands);
  // Of the event that Begin() opened; see ExpertCache::BeginLayer().
  std::span<const DemandDecision> Decide();
  // The loads to start now, most likely first; valid until the next call. `probabilities_ppm`: per
  // expert of `target`, of being used by at least one decode row.
  std::span<const PrefetchLoad> Prefetch(LayerId target,
                                         std::span<const uint32_t> probabilities_ppm);
  void End(const EventTimes& times);

  // See ExpertCache; between events.
  bool CloseSlots(int32_t count);
  void OpenSlots(int32_t count);

  // MoE layers of lead that predictions are wanted for now; 0: none.
  int32_t lookahead() const;

  // For reports of copies, and to look at.
  ExpertCache& cache() { return cache_; }
  const ExpertCache& cache() const { return cache_; }
  const PrefetchPlanner& planner() const { return planner_; }
  const StrideController& stride() const { return *stride_; }
  bool has_forecaster() const { return ranks_ != nullptr; }
  // Prefetch is on, and worth its time as far as that was tried.
  bool prefetches() const { return planner_.active() && (trial_ == nullptr || trial_->chosen()); }
  // Zero without samples_best_cache.
  BestCacheSample::Counts best_cache() const {
    return best_ == nullptr ? BestCacheSample::Counts{} : best_->counts();
  }

  Status CheckInvariants() const;

 private:
  // The forecast of this event goes to the cache when it is needed first.
  void UseForecast();
  void Measure(const EventTimes& times);
  void FollowSlots();
  void BeginSample();
  void Sample(std::span<const DemandDecision> decisions);

  const ExpertPolicyOptions options_;
  ExpertCache cache_;
  PrefetchPlanner planner_;
  std::unique_ptr<ForecastRanks> ranks_;
  std::unique_ptr<PrefetchTrial> trial_;   // null: none
  std::unique_ptr<LeadCost> lead_cost_;    // null: a lead may cost what it does
  std::unique_ptr<BestCacheSample> best_;  // null: none
  uint64_t lru_misses_before_ = 0;
  std::vector<size_t> layer_base_;   // first expert of a layer, numbered through
  std::vector<size_t> sample_uses_;  // scratch
  std::unique_ptr<StrideController> stride_;
  std::vector<int32_t> layer_order_;  // position among the MoE layers
  LayerId layer_;
  std::span<const LayerDemand> demands_;
  int32_t expected_experts_ = 0;  // of the nearest layer that was predicted in this event
  ExpertCacheStats before_;       // as of the event before
  bool observed_ = false;         // the forecast knows of this event
  bool forecast_used_ = false;
  std::vector<PrefetchLoad> loads_;
};

}  // namespace expertflow
