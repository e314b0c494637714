// What a replay asks of a cache, and the classic policies behind it. Pure; one thread.
//
// A cache hears of one (step, layer) at a time: all distinct experts of the event at once. They
// are hits or misses by what was resident before it, and none of them may be evicted by another
// one of the same event: asking one by one would count misses that no real run has (FIELD 4). A
// miss without an acceptable victim is passed through a streaming buffer and not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "predictor/core/next_use_forecaster.h"
#include "sim/routing_trace.h"

namespace expertflow {

struct ReplayEvent {
  size_t number = 0;
  size_t step = 0;
  int32_t layer = 0;
  std::span<const int32_t> experts;     // numbered through, ascending, distinct
  std::span<const int32_t> users;       // rows that use each
  std::span<const Lockstep::Row> rows;  // of the step
};

class ReplayCache {
 public:
  virtual ~ReplayCache() = default;
  // missed[i] = 1 when experts[i] was not resident. REQUIRES: missed.size() == experts.size()
  virtual void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) = 0;
  virtual int32_t resident() const = 0;
  virtual Status CheckInvariants() const = 0;
};

// What a policy may know. `lockstep` is read by Belady alone, beyond the present.
struct ReplaySetup {
  const Lockstep* lockstep = nullptr;
  int32_t slots = 0;                               // all
  std::span<const uint64_t> block_bytes;           // of each expert; empty: all alike
  std::span<const uint8_t> slot_class;             // of each expert; empty: there is one class
  std::span<const int32_t> class_slots;            // with slot_class: of each class
  std::span<const uint64_t> training_uses;         // of each expert, for static binding
  const RoutingTrace* trace = nullptr;             // for "ours"
  std::shared_ptr<const NextUseModel> forecaster;  // for "ours"; null: without
};

// "static", "lru", "lru-layer", "lfu", "lfru", "decayed-lfu-<half-life in tokens>", "two-level",
// "belady", "ours" (the worker's expert cache, with the forecaster if there is one) and
// "ours-no-forecast". Where slots have classes, each class is a cache of its own, but for ours,
// which knows classes. kInvalidArgument names an unknown policy and lists these.
Result<std::unique_ptr<ReplayCache>> MakeReplayCache(std::string_view policy,
                                                     const ReplaySetup& setup);
// "ours" and "ours-no-forecast" (expert_cache_arm.cpp).
std::unique_ptr<ReplayCache> MakeExpertCacheArm(bool with_forecast, const ReplaySetup& setup);

// For each use of each event (as Lockstep::experts), the event of the expert's next use;
// the number of events where there is none.
std::vector<uint32_t> NextUses(const Lockstep& lockstep);

}  // namespace expertflow
