// Processor time, for measuring on a machine that others use, too.
#pragma once

#include <cstdint>
#include <ctime>

namespace expertflow {

// What the calling thread has had of a core, in nanoseconds: time in which others have it does not
// count.
inline int64_t ThreadCpuNs() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace expertflow
