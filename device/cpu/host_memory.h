// Committed host memory, and how much of it there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/status.h"
#include "device/device.h"

namespace expertflow::cpu {

struct HostMemory {
  uint64_t bytes_total = 0;
  uint64_t bytes_available = 0;  // without swapping, within the limits of this process's cgroup
};
Result<HostMemory> QueryHostMemory();

// Zeroed, backed by memory (huge pages where the system gives them) before it returns.
// kResourceExhausted with need and have, never a later out-of-memory kill by our own doing.
Result<std::unique_ptr<DeviceAllocation>> AllocateHostMemory(size_t bytes);

}  // namespace expertflow::cpu
