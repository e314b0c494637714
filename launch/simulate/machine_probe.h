// What a model's layers cost on this machine: runs it over a link that takes no time, and fits the
// times of its layers (sim/measured_times.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/typical_steps.h"
#include "launch/simulate/recorded_run.h"
#include "sim/measured_times.h"

namespace expertflow {

struct MachineProbeOptions {
  int32_t threads = 2;
  std::string kernels = "auto";
  // Of the run that is to be simulated: caches make what fits into less memory faster, and how
  // tokens are drawn is part of a step.
  double resident_percent = 100;
  float temperature = 0;
  bool copy_thread = false;  // LinkProperties
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
  struct ProbedRun {
    RecordedRun run;
    RecordedSettings settings;
  };
  Result<ProbedRun> RunOnce(int32_t batch, const LinkProperties& link) const;
  Status TimeCopies();

  const BenchModel& model_;
  const MachineProbeOptions options_;
  // How much longer than until a copy has come compute waits for it: what `costs` do not explain.
  Result<double> WakeNs(const MeasuredCosts& costs) const;

  // A run that waits for its copies, every time the same steps.
  ProbedRun waiting_;  // the first
  TypicalSteps waiting_steps_;
  std::vector<MeasuredLayer> layers_;
  std::vector<MeasuredStepEnd> ends_;
  std::vector<int64_t> prepare_ns_;  // of an expert's copy
  std::vector<int64_t> start_ns_;
  std::vector<int64_t> copy_ns_;
};

// The figures, a line each.
std::string DescribeCosts(const MeasuredCosts& costs);

}  // namespace expertflow
