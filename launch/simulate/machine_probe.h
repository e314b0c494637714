// What a model's layers cost on this machine: runs it over a link that takes no time, and fits the
// times of its layers (sim/measured_times.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "launch/bench/bench_model.h"
#include "sim/measured_times.h"

namespace expertflow {

struct MachineProbeOptions {
  int32_t threads = 2;
  std::string kernels = "auto";
  // Of the run that is to be simulated: caches make what fits into less memory faster, and how
  // tokens are drawn is part of a step.
  double resident_percent = 100;
  float temperature = 0;
};

class MachineProbe {
 public:
  // REQUIRES: `model` outlives it and does not move
  MachineProbe(const BenchModel& model, const MachineProbeOptions& options)
      : model_(model), options_(options) {}

  // Measures once more, for about half a second with a small model. What is compared with a
  // simulation should take turns with it: the machine may be busy.
  Status Run();
  // REQUIRES: Run() has succeeded
  Result<MeasuredCosts> Costs() const;

 private:
  Status RunWith(int32_t batch);
  Status TimeCopies();

  const BenchModel& model_;
  const MachineProbeOptions options_;
  std::vector<MeasuredLayer> layers_;
  std::vector<MeasuredStepEnd> ends_;
  std::vector<int64_t> prepare_ns_;  // of an expert's copy
  std::vector<int64_t> start_ns_;
};

// The figures, a line each.
std::string DescribeCosts(const MeasuredCosts& costs);

}  // namespace expertflow
