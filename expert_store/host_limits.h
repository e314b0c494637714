// Checks made before the store allocates or locks anything. Each error says what is needed, what
// there is, and how to raise it.
#pragma once

#include <cstdint>

#include "common/status.h"

namespace expertflow {

// Room in /dev/shm and memory (MemAvailable and cgroup limits) for a segment of `bytes`.
Status CheckSharedMemory(uint64_t bytes);

// RLIMIT_MEMLOCK allows this process to lock `bytes`. Only for callers that lock.
Status CheckMemlock(uint64_t bytes);

}  // namespace expertflow
