// The CPU as a device: ops on a thread pool with kernels chosen at run time, private arenas in host
// memory, and a transfer stream whose link to "device memory" can be emulated, so that caching and
// overlap are real and measurable without an accelerator.
//
// Work runs on the thread that enqueues it, before the call returns (the contract allows it), but
// for copies that a copy thread makes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "device/device.h"

namespace expertflow {

struct CpuDeviceOptions {
  int32_t threads = 0;           // compute threads, the caller included; 0: all usable CPUs
  std::string kernels = "auto";  // "auto", "scalar", "avx2", "avx512", "amx"
  // Quantised matrices are multiplied with activations rounded to INT8 (HasIntegerProducts() in
  // kernels/kernel_table.h); sums of its own.
  bool int8_activations = false;
  // Emulated when its rate is not 0; then a copy thread may be asked for, of which machines with a
  // core to spare make a copy engine (copy_thread.h).
  LinkProperties link;
};

// Errors name the option and what this machine has.
Result<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options);

// Kernel sets that this machine can run, slowest first.
std::vector<std::string> AvailableKernels();

}  // namespace expertflow
