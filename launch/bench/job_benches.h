// The benchmarks that run a whole job, coordinator, store and workers as `expertflow run` starts
// them, and those that need the simulator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "launch/bench/bench_report.h"
#include "launch/bench/bench_setup.h"
#include "launch/job.h"

namespace expertflow {

// A decode step in a job against the same step of an engine in this process.
Result<BenchReport> BenchOverhead(const BenchSetup& setup);
// Proportional set size of store and workers against what the plan promises, at the start and
// after 20,000 generated tokens.
Result<BenchReport> BenchMemory(const BenchSetup& setup);
// From the start of `expertflow run` to the first character of its text.
Result<BenchReport> BenchStart(const BenchSetup& setup);
// CPU time of a job that has nothing to do.
Result<BenchReport> BenchIdle(const BenchSetup& setup);
// Runs over emulated links against the simulation of their recordings.
Result<BenchReport> BenchTruth(const BenchSetup& setup);

// Cache policy, prefetch and stride in all combinations that matter, over emulated links.
Result<BenchReport> BenchPolicies(const BenchSetup& setup);
// The dynamic stride beside fixed ones, simulated.
Result<BenchReport> BenchStride(const BenchSetup& setup);
// How fast the simulator is.
Result<BenchReport> BenchSimulator(const BenchSetup& setup);

// A job that takes requests. `arguments` go to all roles.
Result<std::unique_ptr<Job>> StartBenchJob(const std::string& model, int32_t workers,
                                           std::vector<std::string> arguments);
void EndBenchJob(Job& job);

struct ProcessUsage {
  std::string role;             // "coordinator", "store", "worker"
  uint64_t resident_bytes = 0;  // shared pages divided by their users
  int64_t cpu_ns = 0;           // of all threads, since they started
};
// Of the roles of a job. Processes that end meanwhile are left out.
std::vector<ProcessUsage> UsageOf(const std::string& job);

}  // namespace expertflow
