#include "transport/poll_wait.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "common/check.h"

namespace expertflow {

WakeFd::WakeFd() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  CHECK(fd_.valid());
}

void WakeFd::Signal() {
  if (signalled_.exchange(true, std::memory_order_acq_rel)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof(one));
}

bool WakeFd::Take() {
  if (!pending()) return false;
  // The counter first: a Signal() in between then finds the flag set and the Take() that is under
  // way answers it; the other order could leave the flag set with an empty counter.
  uint64_t count = 0;
  const bool had_counter = ::read(fd_.get(), &count, sizeof(count)) == sizeof(count);
  if (had_counter) signalled_.store(false, std::memory_order_release);
  return had_counter;
}

Result<bool> WaitForFds(Deadline deadline, std::span<pollfd> own, WakeFd* wake,
                        std::span<pollfd> others) {
  std::vector<pollfd> fds(own.begin(), own.end());
  fds.push_back({wake->fd(), POLLIN, 0});
  fds.insert(fds.end(), others.begin(), others.end());
  int ready = 0;
  do {
    const int64_t left_ns = deadline.RemainingNs();
    const timespec timeout{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    ready = ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) return FromErrno(errno, "cannot wait for messages");
  for (size_t i = 0; i < own.size(); ++i) own[i].revents = fds[i].revents;
  for (size_t i = 0; i < others.size(); ++i) others[i].revents = fds[own.size() + 1 + i].revents;
  return wake->Take();
}

}  // namespace expertflow
