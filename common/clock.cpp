#include "common/clock.h"

#include <ctime>

#include <algorithm>

namespace expertflow {

int64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<int64_t>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

int64_t Deadline::RemainingNs() const {
  return std::max<int64_t>(0, at_ns_ - NowNs());
}

int Deadline::RemainingMs(int max_ms) const {
  const int64_t ms = (RemainingNs() + 999'999) / 1'000'000;
  return static_cast<int>(std::min<int64_t>(ms, max_ms));
}

}  // namespace expertflow
