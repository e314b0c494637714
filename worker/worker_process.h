// The worker role: one device, one expert cache, whole sequences (ARCHITECTURE 4).
//
// Two threads: this one owns the transport (messages, heartbeats, deaths, signals), the engine
// thread runs steps. They share two bounded queues and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/process.h"
#include "common/status.h"
#include "common/units.h"
#include "device/device.h"
#include "predictor/core/stride_bounds.h"
#include "transport/transport.h"
#include "transport/wireup.h"

namespace expertflow {

struct WorkerOptions {
  std::string job;
  ProcessId self{-1};  // within the job
  std::string device = "cpu";
  std::string kernels = "auto";     // "scalar", "avx2", "avx512", "amx"
  bool int8_activations = false;    // in products with quantised matrices
  int32_t threads = 0;              // compute threads; 0: this worker's share of the host's cores
  int32_t workers_on_host = 0;      // for that share; 0: counted from the members
  bool device_memory_host = false;  // compute in place from the store's mapping: no arena, no cache
  ByteBudget expert_memory{.is_percent = true, .percent = 100};  // of the private arena
  int32_t streaming_buffers = 2;
  LinkProperties link;            // emulated when a rate is given
  bool cache_by_recency = false;  // plain LRU, else the expected next use
  bool prefetch = true;
  double policy_time_most = 0.05;  // of a layer's time, for forecaster and predictor each
  bool learns = true;              // predictors, from what comes
  bool shares_learning = true;     // and from what comes to the other workers
  bool shares_stride =
      true;             // one lead for all workers, as far as it is not fixed, else one of its own
  StrideBounds stride;  // layers of lead of the prefetch
  uint64_t kv_memory_bytes = 0;       // 0: see memory_plan.h
  uint64_t kv_memory_most_bytes = 0;  // likewise
  DType kv_dtype = DType::kF32;
  int32_t sequences_max = 16;
  int32_t prefill_tokens_max = 512;  // per step
  bool prefix_cache = true;          // not while routing is recorded
  bool group_by_experts = false;     // of waiting sequences, unless all experts are at hand
  bool static_batches = false;       // a new batch only when all of the last one have ended
  uint64_t transfer_chunk_bytes = 1 << 20;
  uint64_t outgoing_bytes_max = uint64_t{64} << 20;  // captured logits that wait to be sent
  int64_t heartbeat_ns = 1'000'000'000;
  int64_t heartbeat_timeout_ns = 10'000'000'000;  // silence of a coordinator of another host
  std::string trace_file;   // timeline of this worker (timeline.h); empty: none
  std::string record_file;  // routing of this worker (routing_recorder.h); empty: none
  bool record_features = false;
};

// Runs until the coordinator says so or is gone, or a signal arrives (kCancelled).
Status RunWorker(const WorkerOptions& options, Transport& transport,
                 const std::vector<Member>& members, SignalWatcher& signals);

}  // namespace expertflow
