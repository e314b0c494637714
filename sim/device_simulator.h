// One device that decodes a recorded routing, in simulated time: the worker's own policies (worker/
// policy, worker/cache), a link that moves chunks one after the other, compute times from a table.
// Discrete events in integer nanoseconds and bytes; pure and deterministic.
//
// One (step, layer), as the worker's executor does it (worker/cached_executor.h): attention and
// router; the true routing goes to the policies; demand and prefetch are queued; resident experts
// compute at once, the others as they arrive, bypassed ones through streaming buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/digest.h"
#include "common/status.h"
#include "predictor/core/next_use_forecaster.h"
#include "predictor/core/stride_controller.h"
#include "sim/routing_trace.h"
#include "sim/shared_link.h"
#include "worker/cache/transfer_queue.h"
#include "worker/policy/expert_policy.h"

namespace expertflow {

// What computing takes. All of one layer's times are for all rows of a step together.
class ComputeTimes {
 public:
  virtual ~ComputeTimes() = default;
  // Everything of a MoE layer before its experts, for rows whose sequences are `context` tokens
  // long in all. Dense layers that come before it are part of it.
  virtual int64_t BeforeExpertsNs(int32_t layer, int32_t rows, int64_t context) const = 0;
  // `experts` distinct experts over `rows` (row, choice) pairs, in one go. Rows of prompts are rows
  // like others.
  virtual int64_t ExpertsNs(int32_t layer, int32_t experts, int32_t rows) const = 0;
  // After the last layer: head and sampling, for rows whose next token is drawn.
  virtual int64_t StepEndNs(int32_t rows) const = 0;
};

// What predictions a prefetcher gets.
class PredictionSource {
 public:
  virtual ~PredictionSource() = default;
  // probability_ppm[experts of `target`]: that a decode row of `step` uses the expert, as seen from
  // `distance` layers before.
  virtual void Predict(size_t step, int32_t target, int32_t distance,
                       std::span<uint32_t> probability_ppm) = 0;
  // The truth of a layer, in order; for predictors that learn from it.
  virtual void Observe(size_t /*step*/, int32_t /*layer*/) {}
};

// What ranks the victims of the cache.
enum class CacheRanks : uint8_t {
  kOwn,      // the cache's own estimate, or the forecaster's where there is one
  kRecency,  // plain LRU
  kPinned,   // the most frequent experts of the training part, loaded beforehand
  kOracle,   // the true next use
};

struct LinkChange {
  size_t step = 0;
  uint64_t bytes_per_second = 0;
};

struct DeviceSimOptions {
  std::vector<int32_t> slots = {0};  // of each class
  bool keeps_experts = true;         // false: no cache, whatever the slots
  int32_t stream_buffers = 2;
  uint64_t expert_bytes = 0;          // of each expert, unless they differ:
  std::vector<uint64_t> block_bytes;  // numbered through; empty: they do not
  std::vector<uint8_t> slot_class;    // likewise; empty: there is one class
  uint64_t link_bytes_per_second = 0;
  int64_t link_latency_ns = 0;
  // What a chunk takes of the thread that starts it, before it is on the link and while it is;
  // while compute runs, that is a thread of its own.
  int64_t chunk_prepare_ns = 0;
  int64_t chunk_start_ns = 0;
  // What it takes of a thread that makes one copy after the other, once they are started.
  int64_t chunk_copy_ns = 0;
  int64_t arrival_ns = 0;                // what compute takes to note that an expert has come
  int64_t wake_ns = 0;                   // how much longer compute waits than until one has come
  int64_t ranking_ns = 0;                // what finding victims takes, of a layer that needs some
  TransferQueueOptions queue;            // but for `max_jobs`, which follows from the slots
  std::vector<LinkChange> link_changes;  // ascending by step
  CacheRanks ranks = CacheRanks::kOwn;
  std::span<const uint64_t> training_uses;         // for kPinned
  std::shared_ptr<const NextUseModel> forecaster;  // null: without
  std::unique_ptr<StrideController> stride;        // null: no prefetch
  PredictionSource* predictions = nullptr;         // not null with a stride
  PrefetchPlannerOptions prefetch;
  int64_t prediction_ns = 0;  // that a prediction costs, of each source layer
  bool check_invariants = false;
};

struct StrideChange {
  size_t step = 0;
  int32_t stride = 0;
};

struct DeviceSimResult {
  uint64_t steps = 0;
  uint64_t tokens = 0;  // decoded
  uint64_t prefill_tokens = 0;
  uint64_t events = 0;
  int64_t total_ns = 0;
  int64_t stall_ns = 0;  // compute waited for an expert
  int64_t link_busy_ns = 0;
  uint64_t hits = 0;
  uint64_t late_hits = 0;
  uint64_t misses = 0;
  uint64_t bypasses = 0;
  uint64_t bytes_demand = 0;
  uint64_t bytes_prefetch = 0;
  uint64_t bytes_wasted = 0;
  uint64_t bytes_regret = 0;          // loaded again because a prefetch had evicted them
  uint64_t prefetch_switch_offs = 0;  // by the planner's ledger
  uint64_t waits = 0;                 // of compute, each for one expert more
  // From asking for an expert that is not there to its arrival, summed over late hits and misses.
  int64_t arrival_wait_ns = 0;
  std::vector<int64_t> step_stall_ns;  // [steps]
  std::vector<int64_t> step_ns;        // [steps]
  std::vector<StrideChange> strides;   // the first, and each change
  uint64_t cache_digest = 0;           // of all decisions of the cache
  uint64_t digest = 0;                 // of those of cache, planner and queue

  int64_t compute_ns() const { return total_ns - stall_ns; }
  double tokens_per_second() const {
    return total_ns == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(total_ns);
  }
};

// A device whose steps are given one after the other, layer by layer, so that several can run side
// by side in one simulated time.
class SimulatedDevice {
 public:
  // `shared`: what its link has in common with others; null: nothing. The lockstep may grow, unless
  // ranks come from its future (CacheRanks::kOracle). REQUIRES: all outlive it
  SimulatedDevice(const RoutingTrace& trace, const Lockstep& lockstep, const ComputeTimes& compute,
                  DeviceSimOptions options, SharedLink* shared = nullptr);
  ~SimulatedDevice();

  // REQUIRES: the step before has ended; the lockstep has this one
  void BeginStep(size_t step);
  // The step's next layer, the step's end with the last one. True: there are more.
  bool RunLayer();
  // Nothing to compute until then.
  void WaitUntil(int64_t ns);
  int64_t now_ns() const;

  Status CheckInvariants() const;
  // Of all steps so far.
  DeviceSimResult result() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs all steps of `lockstep`. An error says which invariant broke. REQUIRES: the trace is the one
// of `lockstep`; all outlive the call
Result<DeviceSimResult> SimulateDevice(const RoutingTrace& trace, const Lockstep& lockstep,
                                       const ComputeTimes& compute, DeviceSimOptions options);

}  // namespace expertflow
