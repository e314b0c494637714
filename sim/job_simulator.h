// A job in simulated time: requests come when they come, the coordinator's placement gives them to
// devices, each device's step scheduler makes steps of them under its KV cache, and devices whose
// links pass the same host memory get in each other's way. All policies are the real ones
// (coordinator/policy, worker/schedule, worker/policy). Pure and deterministic.
//
// Devices take turns by (step, layer), the one that is farthest back first. What a layer decides
// cannot depend on another device's layer that began before it and ends later; only the shared link
// joins them, which gives out its free times (SharedLink).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "sim/device_simulator.h"
#include "sim/routing_trace.h"
#include "worker/schedule/step_scheduler.h"

namespace expertflow {

// A sequence of the trace that is asked for: its first rows are the prompt, each later one computes
// a token that was generated, so it generates rows - prompt_tokens + 1 tokens.
struct SimRequest {
  int64_t arrival_ns = 0;
  int32_t sequence = 0;
  int32_t prompt_tokens = 1;
  int32_t rows = 1;  // that are computed: at most as many as the sequence has
};

struct SimRequestResult {
  int32_t device = 0;          // that it ended on
  int64_t first_token_ns = 0;  // all times are of the job
  int64_t end_ns = 0;
  int32_t tokens = 0;  // generated
};

// One device and what it predicts with. The lockstep is the device's own; it grows.
struct SimJobDevice {
  DeviceSimOptions options;
  std::unique_ptr<PredictionSource> predictions;
};

struct SimJobOptions {
  int32_t devices = 1;
  int64_t kv_blocks = 0;  // of each device
  SchedulerOptions scheduler;
  uint64_t shared_bytes_per_second = 0;  // that the devices' links have in common; 0: nothing
  bool check_invariants = false;
};

struct SimJobResult {
  std::vector<DeviceSimResult> devices;
  std::vector<SimRequestResult> requests;  // in the order of the requests
  std::vector<int64_t> gaps_ns;            // between tokens of a request, all requests
  int64_t total_ns = 0;
  int64_t shared_busy_ns = 0;
  uint64_t preemptions = 0;
  uint64_t tokens = 0;  // generated
};

class SimDeviceMaker {
 public:
  virtual ~SimDeviceMaker() = default;
  // `lockstep`: what the device is going to run, empty so far.
  virtual Result<SimJobDevice> Make(const Lockstep& lockstep) const = 0;
};

// An error says which invariant broke, or that a request does not fit the KV cache alone. REQUIRES:
// requests ascend by arrival, their rows are in the trace; ranks do not come from the future
Result<SimJobResult> SimulateJob(const RoutingTrace& trace, std::span<const SimRequest> requests,
                                 const ComputeTimes& compute, const SimDeviceMaker& maker,
                                 const SimJobOptions& options);

}  // namespace expertflow
