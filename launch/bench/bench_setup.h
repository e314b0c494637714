// What `expertflow bench` was asked for, and the benchmarks that run in one process. Those that
// need a job are in job_benches.h.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"
#include "launch/bench/bench_report.h"

namespace expertflow {

struct BenchSetup {
  std::string model;          // model folder or store file; empty: the benchmark's own model
  std::string work_folder;    // existing; temporary files go below it and are removed
  std::string bundled_model;  // models/tiny-moe
  std::string kernels = "auto";
  int32_t threads = 2;
  int32_t repetitions = 0;  // of each arm; 0: the benchmark's default
  std::string program;      // the expertflow program, for benchmarks that start processes

  int32_t Repetitions(int32_t by_default) const {
    return repetitions > 0 ? repetitions : by_default;
  }
};

// Decode at batch 1 in place, against the read bandwidth of the same memory.
Result<BenchReport> BenchDecode(const BenchSetup& setup);
// A prompt of 512 tokens: tokens/s and FLOP/s, and the same matrix products alone.
Result<BenchReport> BenchPrefill(const BenchSetup& setup);
// Expert copies against memcpy, and how much of an emulated link they use.
Result<BenchReport> BenchCopies(const BenchSetup& setup);
// A checkpoint into a store segment, against plain reads of the same files.
Result<BenchReport> BenchLoad(const BenchSetup& setup);
// Decode with and without a recording of its routing.
Result<BenchReport> BenchRecord(const BenchSetup& setup);
// Share of resident experts x prefetch, over an emulated link.
Result<BenchReport> BenchCache(const BenchSetup& setup);

}  // namespace expertflow
