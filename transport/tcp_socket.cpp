#include "transport/tcp_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

namespace expertflow {
namespace {

constexpr int kTcpBacklog = 64;
constexpr int kTcpPollMs = 60'000;
constexpr size_t kTcpReadBytes = 4096;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& address, bool passive) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return InvalidArgument(fmt::format("'{}' is not host:port", address));
  }
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty() && !passive) return InvalidArgument(fmt::format("'{}' has no host", address));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = (passive ? AI_PASSIVE : 0) | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return InvalidArgument(fmt::format("cannot use '{}': {}", address, ::gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

UniqueFd MakeSocket(const addrinfo& info) {
  return UniqueFd(
      ::socket(info.ai_family, info.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, info.ai_protocol));
}

// Waits until `fd` is ready for `events`; false when the deadline passed first.
bool WaitReady(int fd, int16_t events, Deadline deadline) {
  while (true) {
    pollfd waiting{fd, events, 0};
    const int ready = ::poll(&waiting, 1, deadline.RemainingMs(kTcpPollMs));
    if (ready > 0) return true;
    if (deadline.Passed()) return false;
  }
}

int ConnectError(int fd, const addrinfo& info, Deadline deadline) {
  if (::connect(fd, info.ai_addr, info.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!WaitReady(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

std::string FormatAddress(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown address";
  }
  return address.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                       : fmt::format("{}:{}", host, port);
}

}  // namespace

Result<UniqueFd> ListenTcp(const std::string& address) {
  ASSIGN_OR_RETURN(const AddressList list, Resolve(address, /*passive=*/true));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    UniqueFd fd = MakeSocket(*info);
    const int on = 1;
    if (fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(fd.get(), info->ai_addr, info->ai_addrlen) == 0 &&
        ::listen(fd.get(), kTcpBacklog) == 0) {
      return fd;
    }
    error = errno;
  }
  return InvalidArgument(FromErrno(error, "cannot listen at " + address).message());
}

Result<UniqueFd> ConnectTcp(const std::string& address, Deadline deadline) {
  ASSIGN_OR_RETURN(const AddressList list, Resolve(address, /*passive=*/false));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    UniqueFd fd = MakeSocket(*info);
    error = fd.valid() ? ConnectError(fd.get(), *info, deadline) : errno;
    if (error == 0) return fd;
  }
  return Unavailable(FromErrno(error, "cannot connect to " + address).message());
}

std::string LocalAddressOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return FormatAddress(address, size);
}

std::string PeerAddressOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return FormatAddress(address, size);
}

Status WriteAll(int fd, std::span<const uint8_t> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitReady(fd, POLLOUT, deadline)) return DeadlineExceeded("the peer does not read");
    } else if (errno != EINTR) {
      return Unavailable(FromErrno(errno, "cannot write").message());
    }
  }
  return OkStatus();
}

Status ReadSome(int fd, std::vector<uint8_t>* bytes, Deadline deadline) {
  uint8_t chunk[kTcpReadBytes];
  while (true) {
    const ssize_t n = ::recv(fd, chunk, sizeof(chunk), MSG_DONTWAIT);
    if (n > 0) {
      bytes->insert(bytes->end(), chunk, chunk + n);
      return OkStatus();
    }
    if (n == 0) return Unavailable("the peer has closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitReady(fd, POLLIN, deadline)) return DeadlineExceeded("the peer does not answer");
    } else if (errno != EINTR) {
      return Unavailable(FromErrno(errno, "cannot read").message());
    }
  }
}

}  // namespace expertflow
