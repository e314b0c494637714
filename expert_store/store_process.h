// The store role: owns the host's shared-memory segment, or names the packed file, for the workers
// of its host. It fills the segment, tells the coordinator where the model is, and removes the
// segment when the job ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/process.h"
#include "common/status.h"
#include "expert_store/store_layout.h"
#include "model/checkpoint/weight_plan.h"
#include "transport/transport.h"
#include "transport/wireup.h"

namespace expertflow {

struct StoreOptions {
  std::string job;
  int64_t job_pid = 0;     // while it lives nobody sweeps the segment (SegmentOptions::job_pid)
  std::string model;       // checkpoint folder; unused with store_file
  std::string store_file;  // packed file to map instead of loading
  WeightPlan plan;         // of the checkpoint's architecture
  std::string config_json;
  int32_t load_threads = 0;  // 0: chosen
  int64_t heartbeat_ns = 1'000'000'000;
  int64_t heartbeat_timeout_ns = 10'000'000'000;  // silence of a coordinator of another host
};

// Runs until the coordinator says so or is gone, or a signal arrives (kCancelled).
Status RunStore(const StoreOptions& options, Transport& transport,
                const std::vector<Member>& members, SignalWatcher& signals);

}  // namespace expertflow
