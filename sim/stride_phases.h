// Strides judged on a simulated device whose link, batch or prompts change while it decodes: three
// phases of equal length, of which the first and the last differ in nothing but the link's rate.
// 24 layers of 60 experts of 4 MB, top-4, drawn routing, predictions with the recall that
// PREDICTION's table has for half a layer later. Pure and deterministic.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"
#include "predictor/core/stride_controller.h"
#include "sim/device_simulator.h"
#include "sim/routing_trace.h"
#include "worker/cache/prefetch_planner.h"

namespace expertflow {

// What changes with the second phase, and again with the third.
enum class PhaseChange : uint8_t {
  kLink,    // the link is half as fast, then twice as fast as at first
  kBatch,   // four times as many sequences, then as many as at first
  kPrompts  // prompts whose routing is flatter and changes more, then such as at first
};

struct StridePhasesSetting {
  double residency = 0;  // share of the experts that there are slots for
  uint64_t link_bytes_per_second = 0;
  int32_t batch = 1;  // sequences at once
  PhaseChange change = PhaseChange::kLink;

  // "50 % resident, 40 GB/s, batch 1, link changes"
  std::string Description() const;
};

class StridePhases {
 public:
  static constexpr size_t kPhases = 3;
  static constexpr size_t kPhaseSteps = 120;
  // After so many steps of a phase the stride should be where it stays.
  static constexpr size_t kSettleSteps = 32;

  explicit StridePhases(const StridePhasesSetting& setting);

  // The ten that strides are judged on.
  static std::span<const StridePhasesSetting> Settings();
  // Fixed strides to compare with.
  static std::span<const int32_t> FixedStrides();

  Result<DeviceSimResult> Run(std::unique_ptr<StrideController> stride,
                              const PrefetchPlannerOptions& prefetch) const;
  // As a worker is set up for this device.
  Result<DeviceSimResult> RunDynamic() const;

 private:
  const StridePhasesSetting setting_;
  RoutingTrace trace_;
  Lockstep lockstep_;
};

// Of a phase of such a result: what compute waited, by all the time.
double StallShare(const DeviceSimResult& result, size_t phase);
// Changes of the stride later than StridePhases::kSettleSteps after the phase's beginning.
int64_t LateMoves(const DeviceSimResult& result, size_t phase);

}  // namespace expertflow
