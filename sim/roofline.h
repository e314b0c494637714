// Compute times of a model on a device by a roofline: a kernel takes as long as its bytes at the
// memory's rate or its operations at the processor's, whichever is longer, and a launch on top.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "sim/device_simulator.h"

namespace expertflow {

// Rates are what programs reach, not what data sheets promise.
struct HardwareProfile {
  std::string name;
  double flops = 0;                    // of 16-bit matrix products, dense
  double memory_bytes_per_second = 0;  // reading
  int64_t launch_ns = 0;               // of one kernel
  uint64_t memory_bytes = 0;
  uint64_t link_bytes_per_second = 0;  // host to device, one way
  int64_t link_latency_ns = 0;
  std::string sources;  // where the figures are from
};
// Everything is positive and of a believable size; names the figure.
Status CheckHardware(const HardwareProfile& hardware);

// What one MoE layer has before its experts (attention, norms, router, shared experts, and dense
// layers in front of it): bytes are read once a step, operations are a row's.
struct SimLayer {
  uint64_t bytes = 0;
  double flops_per_row = 0;
  uint64_t kv_bytes_per_token = 0;  // of context that attention reads
  int32_t kernels = 0;
};

struct SimModel {
  std::string name;
  std::vector<SimLayer> layers;  // MoE layers
  int32_t experts = 0;           // of each
  int32_t top_k = 0;
  uint64_t expert_bytes = 0;
  double expert_flops_per_row = 0;
  uint64_t dense_bytes = 0;  // all that is no routed expert; embeddings included
  uint64_t head_bytes = 0;   // read once a step after the last layer
  double head_flops_per_row = 0;
  uint64_t kv_bytes_per_token = 0;  // all layers
};

class Roofline final : public ComputeTimes {
 public:
  // REQUIRES: both outlive it
  Roofline(const SimModel& model, const HardwareProfile& hardware)
      : model_(model), hardware_(hardware) {}
  int64_t BeforeExpertsNs(int32_t layer, int32_t rows, int64_t context) const override;
  int64_t ExpertsNs(int32_t layer, int32_t experts, int32_t rows) const override;
  int64_t StepEndNs(int32_t rows) const override;

 private:
  int64_t TimeNs(double bytes, double flops, int32_t kernels) const;

  const SimModel& model_;
  const HardwareProfile& hardware_;
};

}  // namespace expertflow
