// What every Transport::Poll() does in the end: sleep on several descriptors at once. Internal to
// transport/.
#pragma once

#include <poll.h>

#include <atomic>
#include <span>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace expertflow {

// Ends a wait from any thread. Signals are not counted: one Take() answers all before it.
class WakeFd {
 public:
  WakeFd();

  int fd() const { return fd_.get(); }
  void Signal();
  // True when there was a signal since the last Take(). Costs no system call when there was none.
  bool Take();
  bool pending() const { return signalled_.load(std::memory_order_acquire); }

 private:
  UniqueFd fd_;
  std::atomic<bool> signalled_{false};
};

// Waits until one of `own` or `others` is ready, `wake` is signalled, or the deadline passes; sets
// revents of both lists. A passed deadline still looks once. True when it took a signal of `wake`.
Result<bool> WaitForFds(Deadline deadline, std::span<pollfd> own, WakeFd* wake,
                        std::span<pollfd> others);

}  // namespace expertflow
