// What to prefetch: turns predictions for a later layer into a list of (expert, probability,
// deadline), within a byte budget, and switches itself off when it does harm. A pure policy.
//
// Prefetch moves bytes earlier, it never makes them fewer; each wrong byte takes the place of a
// byte that is needed (FIELD 1, 28). So the planner keeps a ledger in bytes: benefit = blocks whose
// first use found them here or on their way; cost = blocks that left unused (weighted) and blocks
// that had to be loaded again because a prefetch had evicted them. When a period ends with more
// cost than benefit, speculation is off; it is tried again after a pause that doubles each time it
// fails again. Everything is in the counters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"
#include "worker/cache/expert_cache.h"

namespace expertflow {

struct PrefetchPlannerOptions {
  bool enabled = true;
  uint32_t min_probability_ppm = 300'000;  // of the next layer
  // The farther a layer is, the surer a prediction must be: it will be predicted again, and better,
  // before its lead is gone. Added for each layer of distance after the first.
  uint32_t distance_step_ppm = 200'000;
  uint32_t max_probability_ppm = 900'000;  // that is asked for, however far
  uint64_t bytes_per_window = UINT64_MAX;  // admitted per layer event
  int32_t max_per_target = 16;             // experts of one target layer and call
  // The ledger is judged when this many bytes of speculation have found their fate.
  // 0: 256 blocks, at least 64 MiB.
  uint64_t period_bytes = 0;
  uint32_t waste_weight_percent = 50;  // cost of a wasted byte against the benefit of a used one
  uint64_t pause_windows = 2'000;      // first pause
  uint64_t pause_windows_max = 256'000;
};

struct ExpertPrediction {
  ExpertId expert;
  uint32_t probability_ppm = 0;
};

struct PlannedPrefetch {
  ExpertKey key;
  uint32_t probability_ppm = 0;
  uint64_t deadline = 0;  // window in which the target layer comes
};

struct PrefetchPlannerStats {
  uint64_t windows = 0;
  uint64_t planned = 0;
  uint64_t below_threshold = 0;  // among the top_k most likely
  uint64_t over_budget = 0;
  // Quality of the predictor, measured on the top_k most likely at distance 1.
  uint64_t predictions = 0;  // experts predicted
  uint64_t correct = 0;      // of those, truly routed
  uint64_t routed = 0;       // experts truly routed in judged layers
  uint64_t benefit_bytes = 0;
  uint64_t cost_bytes = 0;
  uint64_t switch_offs = 0;
  uint64_t probes = 0;
  bool active = false;  // speculating now
};

class PrefetchPlanner {
 public:
  // `experts`: per layer, as in ExpertCacheOptions.
  PrefetchPlanner(PrefetchPlannerOptions options, std::vector<int32_t> experts, int32_t top_k);

  // An event with decode rows begins: judges the prediction for this layer, reads what the cache
  // counted since the last call, opens a budget window.
  void BeginWindow(LayerId layer, std::span<const LayerDemand> demands,
                   const ExpertCacheStats& cache);

  // The plan for one target layer, most likely first; valid until the next call. Resident experts
  // are left out. `probabilities_ppm`: per expert, of being used by at least one row. Call for
  // the nearest target first: it takes from the budget first.
  std::span<const PlannedPrefetch> Plan(LayerId target, std::span<const uint32_t> probabilities_ppm,
                                        const ExpertCache& cache);
  // Of the latest Plan(), resident or not, most likely first: those that would be likely enough of
  // the next layer, and of that one the top_k most likely in any case.
  std::span<const ExpertPrediction> predicted() const { return predicted_; }
  // A planned prefetch was refused by the cache or the queue: its bytes are free again.
  void OnRefused(uint64_t bytes) { window_left_ += bytes; }

  // What a prediction at this distance must reach.
  uint32_t ThresholdPpm(int32_t distance) const;

  bool active() const { return stats_.active; }
  const PrefetchPlannerStats& stats() const { return stats_; }
  Status CheckInvariants() const;
  uint64_t digest() const { return digest_.value(); }

 private:
  void Judge();
  // At least `fewest`, as far as there are so many.
  void FindMostLikely(std::span<const uint32_t> probabilities_ppm, size_t fewest);
  void Insert(int32_t expert, uint32_t ppm, size_t most);

  PrefetchPlannerOptions options_;
  int32_t top_k_;
  std::vector<size_t> layer_base_;
  std::vector<int32_t> experts_;
  std::vector<uint8_t> predicted_map_;  // per expert: among the top_k for its layer's next event
  std::vector<uint8_t> layer_predicted_;
  std::vector<ExpertPrediction> predicted_;
  std::vector<int32_t> likely_;  // scratch
  std::vector<PlannedPrefetch> plan_;
  uint64_t window_left_ = 0;

  // Ledger of the current period.
  uint64_t seen_used_ = 0;
  uint64_t seen_wasted_ = 0;
  uint64_t seen_regret_ = 0;
  uint64_t period_benefit_ = 0;
  uint64_t period_cost_ = 0;
  uint64_t period_resolved_ = 0;
  uint64_t pause_left_ = 0;
  uint64_t next_pause_ = 0;

  PrefetchPlannerStats stats_;
  Digest digest_;
};

}  // namespace expertflow
