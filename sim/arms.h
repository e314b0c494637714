// The ways to run a model that does not fit which a simulation compares: the same device, routing
// and predictions for all of them. Those called "-like" follow what a paper describes, with our
// parts; they are not its program. Pure.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "predictor/core/next_use_forecaster.h"
#include "predictor/core/stride_bounds.h"
#include "sim/device_simulator.h"
#include "sim/routing_trace.h"

namespace expertflow {

struct ArmSetup {
  const RoutingTrace* trace = nullptr;
  const Lockstep* lockstep = nullptr;
  std::span<const uint64_t> training_uses;         // of each expert, for `static`
  std::vector<double> recall;                      // of predictions, by distance from 1 on
  std::shared_ptr<const NextUseModel> forecaster;  // null: without
  uint64_t seed = 1;
  StrideBounds stride;  // of arms that measure
  int64_t prediction_ns = 0;
  uint64_t chunk_bytes = 1 << 20;
};

// What SimulateDevice() gets, and the predictions that it refers to.
struct Arm {
  DeviceSimOptions options;
  std::unique_ptr<PredictionSource> predictions;
};

// All names, in the order of a report.
std::span<const std::string_view> ArmNames();
// What an arm does, in half a sentence.
std::string_view ArmMeaning(std::string_view name);

// Slots, sizes and link are left to the caller. kInvalidArgument for an unknown name lists all.
Result<Arm> MakeArm(std::string_view name, const ArmSetup& setup, uint64_t expert_bytes);

}  // namespace expertflow
