// What `status` and `/metrics` show: a copy of the coordinator's state at one moment, and its two
// renderings (docs/json.md, docs/metrics.md).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/messages.h"
#include "transport/wireup.h"

namespace expertflow {

// "coordinator", "store", "worker"
const char* RoleName(ProcessRole role);

// A histogram over fixed bounds, for Prometheus.
struct LatencyHistogram {
  static constexpr std::array<double, 12> kBoundsSeconds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                                            0.05,   0.1,   0.25,  0.5,   1,    5};
  std::array<uint64_t, kBoundsSeconds.size() + 1> counts{};
  uint64_t sum_ns = 0;

  void Add(int64_t ns);
};

struct JobCounters {
  uint64_t requests_done = 0;
  uint64_t requests_failed = 0;
  uint64_t requests_cancelled = 0;
  uint64_t requests_refused = 0;
  uint64_t requeues = 0;
  uint64_t workers_lost = 0;
  uint64_t stores_lost = 0;
  uint64_t stalls = 0;
  uint64_t restarts = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of the prompts
  uint64_t generated_tokens = 0;
  LatencyHistogram ttft;
  LatencyHistogram tpot;
};

struct ProcessSnapshot {
  Member member;
  bool ready = false;
  bool busy = false;
  int64_t last_heard_age_ns = 0;
  WorkerReady worker;
  WorkerStats stats;
  StoreReady store;
};

struct JobSnapshot {
  std::string job;
  JobPhase phase = JobPhase::kStarting;
  int64_t uptime_ns = 0;
  std::string join_address;
  std::string requested_config;  // JSON
  size_t queued = 0;
  size_t running = 0;
  uint64_t placement_digest = 0;
  JobCounters counters;
  std::vector<ProcessSnapshot> processes;
};

std::string StatusJson(const JobSnapshot& snapshot);
std::string MetricsText(const JobSnapshot& snapshot);

}  // namespace expertflow
