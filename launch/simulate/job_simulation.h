// A job in simulated time (sim/job_simulator.h) under all arms: a model on some devices of a
// hardware profile, requests that come, and the report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "launch/load/arrivals.h"
#include "launch/load/load_report.h"
#include "launch/simulate/simulation.h"
#include "sim/job_simulator.h"
#include "sim/roofline.h"
#include "sim/routing_trace.h"

namespace expertflow {

struct JobSimulationOptions {
  SimulationOptions each;  // of a device; `batch`: sequences at once
  int32_t devices = 1;
  uint64_t kv_bytes = 0;                 // of a device; 0: `batch` of the longest sequences
  int32_t prefill_tokens_max = 512;      // of a step
  uint64_t shared_bytes_per_second = 0;  // that the devices' links share; 0: nothing
  std::vector<Arrival> arrivals;
  std::string arrivals_from;  // in words
  ServiceLevel level;
};

struct JobArm {
  std::string arm;
  SimJobResult result;
};

struct JobCell {
  SimModel model;
  HardwareProfile hardware;
  std::string routing;  // where it is from
  JobSimulationOptions options;
  std::vector<SimRequest> requests;
  ExpertRoom room;
  int64_t kv_tokens = 0;  // of a device
  std::vector<JobArm> arms;
};

// Request i takes sequence i of the trace, from the start again after the last one, and is as long
// as asked for or as that sequence. kResourceExhausted when dense weights and KV cache do not fit;
// kInvalidArgument for arms that know the future.
Result<JobCell> SimulateJobCell(const SimModel& model, const HardwareProfile& hardware,
                                const RoutingTrace& trace, const std::string& routing,
                                const JobSimulationOptions& options);

std::string JobSimulationTable(const std::vector<JobCell>& cells);
std::string JobSimulationJson(const std::vector<JobCell>& cells);

}  // namespace expertflow
