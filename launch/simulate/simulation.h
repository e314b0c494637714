// One cell of a simulation (a model on a device) under all arms, and the report of all cells.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "predictor/core/next_use_forecaster.h"
#include "predictor/core/stride_bounds.h"
#include "sim/arms.h"
#include "sim/device_simulator.h"
#include "sim/roofline.h"
#include "sim/routing_trace.h"

namespace expertflow {

struct SimulationOptions {
  std::vector<std::string> arms;
  uint64_t memory_bytes = 0;  // of the device; 0: all that it has
  int32_t batch = 1;
  std::vector<double> recall;
  std::shared_ptr<const NextUseModel> forecaster;
  uint64_t seed = 1;
  int64_t prediction_ns = 0;
  StrideBounds stride;  // of arms that measure
};

// What a device has room for beside dense weights and workspace.
struct ExpertRoom {
  int32_t slots = 0;
  double resident = 0;  // slots / experts
};
// kResourceExhausted when not even dense weights and KV cache fit; says need and have.
Result<ExpertRoom> RoomForExperts(const SimModel& model, const HardwareProfile& hardware,
                                  uint64_t memory_bytes, uint64_t kv_bytes);
// How often the first half of the sequences, the training part of static binding, used each expert.
std::vector<uint64_t> TrainingUses(const RoutingTrace& trace);
// All but the lockstep, which is the device's own. REQUIRES: both outlive it
ArmSetup ArmSetupFor(const RoutingTrace& trace, std::span<const uint64_t> training_uses,
                     const SimulationOptions& options);
// Settings of a device that do not depend on the arm.
void SetDevice(const HardwareProfile& hardware, int32_t slots, DeviceSimOptions* options);

struct ArmResult {
  std::string arm;
  DeviceSimResult result;
};

struct Cell {
  SimModel model;
  HardwareProfile hardware;
  std::string routing;  // where it is from
  uint64_t kv_bytes = 0;
  ExpertRoom room;
  // Least bytes that any cache of this size moves, and the stall that they cost on this link.
  uint64_t floor_bytes = 0;
  int64_t floor_stall_ns = 0;
  std::vector<ArmResult> arms;
};

// kResourceExhausted when not even dense weights and KV cache fit; says need and have.
Result<Cell> SimulateCell(const SimModel& model, const HardwareProfile& hardware,
                          const RoutingTrace& trace, const std::string& routing,
                          const SimulationOptions& options);

std::string SimulationTable(const std::vector<Cell>& cells);
std::string SimulationJson(const std::vector<Cell>& cells);
// A page of its own, without outside resources.
std::string SimulationHtml(const std::vector<Cell>& cells);

// As reports divide: 0 of nothing.
inline double Ratio(double part, double whole) {
  return whole == 0 ? 0 : part / whole;
}

}  // namespace expertflow
