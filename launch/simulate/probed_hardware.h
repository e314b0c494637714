// The profile of the hardware that the command runs on, measured when it is asked for: the CPU as a
// device. What a given model's layers cost here is measured by simulate/machine_probe.h.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"
#include "sim/roofline.h"

namespace expertflow {

inline constexpr const char* kThisMachine = "this-machine";

struct HardwareProbeOptions {
  int32_t threads = 0;  // CpuDeviceOptions
  std::string kernels = "auto";
};

// Takes about a second and an eighth of the memory that there is, 1 GiB at most. Of each figure
// the best sample counts: others may keep the machine busy meanwhile. Copies are made by one
// thread, as the device's transfer stream does; `memory_bytes` is what the process could allocate.
Result<HardwareProfile> ProbeHardware(const HardwareProbeOptions& options);

}  // namespace expertflow
