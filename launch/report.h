// What a person wants to know after a run: the memory plan, speed, and what the cache did. Pure
// functions of the figures; nlohmann is kept out of this header.
#pragma once

#include <cstdint>
#include <string>

#include "launch/generation.h"
#include "launch/model_source.h"
#include "worker/memory_plan.h"

namespace expertflow {

// Some lines, each indented by two blanks.
std::string DescribePlan(const MemoryPlan& plan, int64_t workers);
std::string DescribeModel(const ModelSource& model);

// Sums over the workers of a job's status (the coordinator's JSON).
struct JobFigures {
  int64_t workers = 0;
  std::string device;  // of the first worker
  std::string kernels;
  int64_t threads = 0;  // of each worker
  bool in_place = false;
  uint64_t hits = 0;
  uint64_t late_hits = 0;
  uint64_t misses = 0;
  uint64_t bypasses = 0;
  uint64_t bytes_demand = 0;
  uint64_t bytes_prefetch = 0;
  uint64_t bytes_wasted = 0;
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  uint64_t reused_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t steps = 0;
  uint64_t step_ns = 0;
  uint64_t stall_ns = 0;
  uint64_t link_busy_ns = 0;
  uint64_t link_bytes_per_second = 0;  // of one worker
  bool link_emulated = false;
  uint64_t prefetch_predictions = 0;
  uint64_t prefetch_correct = 0;
  int64_t restarts = 0;
};

// A status without workers, or one that is no JSON, gives zeros.
JobFigures FiguresOf(const std::string& status_json);

// About ten lines for a terminal: what came of the plan that was shown before the start.
std::string DescribeRun(const Generation& generation, const JobFigures& figures, int64_t start_ns);

}  // namespace expertflow
