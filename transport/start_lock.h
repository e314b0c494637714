// One process of a host at a time starts UCX, and for a bounded time: starts that run side by side
// have been seen to never return (FIELD row 58), and UCX offers no deadline. Internal to
// transport_ucx.
//
// The lock is an abstract socket address with the user's id in its name, so it belongs to a network
// namespace, leaves no file behind, and the kernel frees it when its holder dies.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace expertflow {

class StartLock {
 public:
  // Waits until no other process, and no other thread of this one, holds the lock of this name.
  // kDeadlineExceeded.
  static Result<StartLock> Acquire(const std::string& name, Deadline deadline);

 private:
  explicit StartLock(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

// The name under which CreateUcxTransport() locks.
std::string UcxStartLockName();

// Runs `start` on a thread of its own while nobody else runs one under this name. When it does not
// return in time (kDeadlineExceeded) the thread is left behind and keeps the lock: the process must
// then end with _exit().
template <typename T>
Result<T> StartAlone(const std::string& name, Deadline deadline, std::function<Result<T>()> start) {
  auto lock = StartLock::Acquire(name, deadline);
  if (!lock.ok()) return lock.status();
  auto held = std::make_unique<StartLock>(std::move(lock).value());
  std::promise<Result<T>> promise;
  std::future<Result<T>> result = promise.get_future();
  std::thread([start = std::move(start), held = std::move(held),
               promise = std::move(promise)]() mutable {
    Result<T> started = start();
    held.reset();
    promise.set_value(std::move(started));
  }).detach();
  if (result.wait_for(std::chrono::nanoseconds(deadline.RemainingNs())) !=
      std::future_status::ready) {
    return DeadlineExceeded("it did not start in time");
  }
  return result.get();
}

}  // namespace expertflow
