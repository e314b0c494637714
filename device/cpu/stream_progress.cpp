#include "device/cpu/stream_progress.h"

#include <time.h>

#include <algorithm>

namespace expertflow::cpu {

bool StreamProgress::WaitUntilDone(StreamKind stream, uint64_t point, Deadline deadline) const {
  constexpr int64_t kSpinNs = 20'000;
  constexpr int64_t kSleepNs = 50'000;
  const int64_t spin_end_ns = NowNs() + kSpinNs;
  while (!IsDone(stream, point)) {
    const int64_t now_ns = NowNs();
    if (now_ns >= deadline.at_ns()) return false;
    if (now_ns < spin_end_ns) {
      __builtin_ia32_pause();
      continue;
    }
    const timespec sleep{0, std::min(kSleepNs, deadline.at_ns() - now_ns)};
    nanosleep(&sleep, nullptr);
  }
  return true;
}

}  // namespace expertflow::cpu
