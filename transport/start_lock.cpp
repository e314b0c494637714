#include "transport/start_lock.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(1);  // UCX starts in some ten milliseconds

}  // namespace

Result<StartLock> StartLock::Acquire(const std::string& name, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte stays 0: an address that is no path.
  CHECK(name.size() < sizeof(address.sun_path) - 1);
  name.copy(address.sun_path + 1, name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return FromErrno(errno, "cannot make a socket");
  while (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    if (errno != EADDRINUSE) return FromErrno(errno, fmt::format("cannot lock {}", name));
    if (deadline.Passed()) {
      return DeadlineExceeded(
          fmt::format("another process of this host did not finish its start in time ({})", name));
    }
    std::this_thread::sleep_for(kRetry);
  }
  return StartLock(std::move(socket));
}

std::string UcxStartLockName() {
  return fmt::format("expertflow-ucx-start-{}", ::geteuid());
}

}  // namespace expertflow
