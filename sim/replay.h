// Replays a recorded routing against caches of several sizes under several policies: all arms see
// the same events in one run. Pure but for its memory: no clock, no I/O; `expertflow replay`
// prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "predictor/core/next_use_forecaster.h"
#include "sim/routing_trace.h"

namespace expertflow {

struct ReplayOptions {
  std::vector<std::string> policies;
  std::vector<double> residencies;  // shares of all experts, 0 to 1
  // Of each expert, numbered through; slots then have as many sizes as a worker's (worker/cache/
  // slot_classes.h), and a residency is a share of the experts of each. Empty: all are alike.
  std::vector<uint64_t> block_bytes;
  std::vector<int32_t> sequences;                  // judged, in order
  std::vector<int32_t> training;                   // for static binding
  std::shared_ptr<const NextUseModel> forecaster;  // for "ours"; null: without
  int32_t bootstrap_rounds = 1000;                 // 0: no confidence
  uint64_t seed = 1;
  bool check_invariants = false;  // after every event; slow
  // A clock that arms are timed with; null: they are not.
  int64_t (*now_ns)() = nullptr;
};

struct ReplayRow {
  std::string policy;
  double residency = 0;
  int32_t batch = 0;
  int32_t slots = 0;
  uint64_t slot_bytes = 0;    // that all slots take; 0 without block_bytes
  uint64_t bytes_missed = 0;  // likewise
  uint64_t events = 0;
  uint64_t tokens = 0;
  uint64_t uses = 0;  // distinct experts of each event
  uint64_t misses = 0;
  double miss_rate = 0;
  // 95 % interval by resampling sequences; equal to miss_rate without a bootstrap.
  double miss_rate_low = 0;
  double miss_rate_high = 0;
  // Slots over the mean number of distinct experts that a pass over all layers uses (FIELD 25).
  double slots_per_demand = 0;
  // Share of the way from `lru` to `belady` in the same cell; none without both or when they agree.
  std::optional<double> gap_closed;
  std::optional<double> gap_closed_layer;  // the same from `lru-layer`
  uint64_t digest = 0;                     // folds which use of which event missed
  // What an event took, of those that were timed; with several arms their caches are cold.
  int64_t event_ns_median = 0;
  int64_t event_ns_p99 = 0;
};

// The rows of one batch size: policies in the order given, residencies within. An error names the
// policy, or says which invariant broke. REQUIRES: sequences are in range, batch > 0
Result<std::vector<ReplayRow>> Replay(const RoutingTrace& trace, const ReplayOptions& options,
                                      int32_t batch);

// The gap columns, once all rows of a run are there.
void CloseGaps(std::span<ReplayRow> rows);

}  // namespace expertflow
