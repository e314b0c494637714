// What `status`, `/metrics` and the page of the HTTP server show: a copy of the coordinator's state
// at one moment, and its renderings (docs/json.md, docs/metrics.md).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/log.h"
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

// The latest values, for percentiles of now.
class LatencyWindow {
 public:
  void Add(int64_t ns);
  size_t size() const { return values_ns_.size(); }
  // The smallest value that at least this share of all does not exceed. REQUIRES: size() > 0,
  // 0 < share <= 1
  int64_t QuantileNs(double share) const;

 private:
  static constexpr size_t kValues = 1000;

  std::vector<int64_t> values_ns_;
  size_t next_ = 0;  // the oldest, once all places are taken
};

struct Latencies {
  LatencyHistogram all;
  LatencyWindow recent;

  void Add(int64_t ns) {
    all.Add(ns);
    recent.Add(ns);
  }
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
  Latencies ttft;
  Latencies tpot;
};

// What workers have learnt, as published (predictor/core/learnt_merge.h).
struct LearningSnapshot {
  struct Recall {
    int32_t distance = 0;  // layers ahead
    double recall = 0;     // of late, all workers
    double pre_gate_recall = 0;
    double overconfidence = 0;  // promised and not kept
    bool falls_back = false;
  };
  uint64_t version = 0;
  int64_t age_ns = 0;    // since it was published
  uint64_t batches = 0;  // of workers, added up
  uint64_t tokens = 0;   // ids with a row
  uint64_t leaves = 0;
  uint64_t tokens_left_out = 0;
  std::vector<Recall> recall;
};

// The lead of all workers' prefetch, as published (predictor/core/global_stride.h).
struct StrideSnapshot {
  uint32_t stride = 0;  // 0: nothing was measured yet, or each worker has its own
  StrideReason reason = StrideReason::kStart;
  bool link_bound = false;
  uint32_t number = 0;            // of what was published
  int64_t age_ns = 0;             // since it was
  uint64_t rounds = 0;            // of reports
  std::vector<StrideMove> moves;  // the latest, oldest first
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
  LearningSnapshot learning;
  StrideSnapshot stride;
  std::vector<ProcessSnapshot> processes;
  std::vector<KeptLogLine> events;  // of the coordinator's log
};

struct WorkerExperts {
  ProcessId id;
  const ExpertReport& report;
};

std::string StatusJson(const JobSnapshot& snapshot);
std::string MetricsText(const JobSnapshot& snapshot);
std::string ExpertsJson(std::span<const WorkerExperts> workers);

}  // namespace expertflow
