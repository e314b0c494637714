#include "launch/load/server_stream.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/clock.h"

namespace expertflow {
namespace {

constexpr size_t kStreamReadBytes = size_t{64} << 10;
constexpr int kTryMs = 2000;

// A TLS record of an alert, or of a handshake: what a server says that expects TLS.
bool IsTlsRecord(std::string_view bytes) {
  return bytes.size() >= 2 && (bytes[0] == '\x15' || bytes[0] == '\x16') && bytes[1] == '\x03';
}

// A socket that connects, or an errno.
Result<UniqueFd> StartConnection(const ServerTarget& target) {
  UniqueFd fd(::socket(target.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return FromErrno(errno, "socket");
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&target.address),
                target.address_size) != 0 &&
      errno != EINPROGRESS) {
    return Unavailable(fmt::format("{}; is the server running?", std::strerror(errno)));
  }
  return fd;
}

bool TakesConnections(const ServerTarget& target) {
  const Result<UniqueFd> fd = StartConnection(target);
  if (!fd.ok()) return false;
  pollfd waiting{fd->get(), POLLOUT, 0};
  if (::poll(&waiting, 1, kTryMs) <= 0) return false;
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

Result<ServerTarget> ServerTarget::Find(ServerUrl url, std::shared_ptr<const TlsTrust> trust) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &list);
  if (error != 0) {
    return InvalidArgument(
        fmt::format("{}: {}; correct the host or the port", url.Text(), ::gai_strerror(error)));
  }
  ServerTarget target;
  target.url = std::move(url);
  target.trust = std::move(trust);
  const auto use = [&target](const addrinfo& info) {
    target.address_size = info.ai_addrlen;
    std::copy_n(reinterpret_cast<const char*>(info.ai_addr), info.ai_addrlen,
                reinterpret_cast<char*>(&target.address));
  };
  use(*list);
  if (list->ai_next != nullptr) {
    for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
      use(*info);
      if (TakesConnections(target)) break;
    }
  }
  ::freeaddrinfo(list);
  return target;
}

Result<ServerStream> ServerStream::Begin(const ServerTarget& target) {
  ASSIGN_OR_RETURN(UniqueFd fd, StartConnection(target));
  std::unique_ptr<TlsSession> tls;
  if (target.url.secure) tls = target.trust->NewSession(target.url.host);
  ServerStream stream(target.url.host, std::move(fd), std::move(tls));
  std::string none;
  if (stream.tls_ != nullptr) RETURN_IF_ERROR(stream.Decrypt("", &none));
  return stream;
}

size_t ServerStream::SendNow(std::string_view bytes) {
  needs_room_ = false;
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count =
        ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      needs_room_ = true;
      break;
    } else if (errno != EINTR) {
      if (send_error_ == 0) send_error_ = errno;  // later ones only say that it is broken
      break;
    }
  }
  return sent;
}

void ServerStream::Flush() {
  if (!out_.empty()) out_.erase(0, SendNow(out_));
}

size_t ServerStream::Write(std::string_view bytes) {
  if (tls_ == nullptr) return SendNow(bytes);
  Flush();
  // Nothing piles up: what is encrypted has to go first.
  if (!tls_->established() || !out_.empty()) return 0;
  if (!tls_->Send(bytes, &out_)) {
    closed_ = true;
    return 0;
  }
  Flush();
  return bytes.size();
}

Result<ServerStream::Progress> ServerStream::Read(std::string* text) {
  Flush();
  std::array<char, kStreamReadBytes> buffer;
  while (!closed_) {
    const ssize_t count = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    // Where no connection comes about, the send may have got the reason.
    const bool unconnected = count < 0 ? errno == ENOTCONN : count == 0 && !begun_;
    const int error = unconnected ? send_error_ : count < 0 ? errno : 0;
    if (error == EAGAIN || (count < 0 && error == 0)) return Progress::kLater;
    if (error != 0) {
      return Unavailable(begun_ ? std::strerror(error)
                                : fmt::format("{}; is the server running?", std::strerror(error)));
    }
    if (count == 0) {
      // TLS says its end itself: whoever cuts the connection could cut an answer.
      if (tls_ != nullptr) return Broken();
      closed_ = true;
      break;
    }
    const std::string_view received(buffer.data(), static_cast<size_t>(count));
    const bool first = !std::exchange(begun_, true);
    if (tls_ == nullptr) {
      if (first && IsTlsRecord(received)) return Unavailable("the server speaks TLS: use https://");
      text->append(received);
      return Progress::kSome;
    }
    const size_t before = text->size();
    RETURN_IF_ERROR(Decrypt(received, text));
    if (text->size() > before) return Progress::kSome;
  }
  return Progress::kClosed;
}

Status ServerStream::Decrypt(std::string_view received, std::string* text) {
  const TlsSession::Outcome outcome = tls_->Receive(received, text, &out_);
  Flush();
  switch (outcome) {
    case TlsSession::Outcome::kOpen: return OkStatus();
    case TlsSession::Outcome::kClosed: closed_ = true; return OkStatus();
    case TlsSession::Outcome::kPlainHttp:
      return Unavailable("the server does not speak TLS: use http:// if that is what it serves");
    case TlsSession::Outcome::kBroken: break;
  }
  return Broken();
}

Status ServerStream::Broken() const {
  switch (tls_->certificate_fault()) {
    case TlsSession::CertificateFault::kNone: break;
    case TlsSession::CertificateFault::kAuthority:
      return Unavailable(
          fmt::format("no known authority vouches for the server's certificate ({}): name a file "
                      "with its authority's by --ca-file",
                      tls_->reason()));
    case TlsSession::CertificateFault::kName:
      return Unavailable(
          fmt::format("the server's certificate is not for {} ({}): use a name that it has", host_,
                      tls_->reason()));
    case TlsSession::CertificateFault::kTime:
      return Unavailable(fmt::format(
          "the server's certificate is not valid now ({}): renew it, or set this machine's clock",
          tls_->reason()));
  }
  if (!tls_->reason().empty()) {
    return Unavailable(fmt::format("TLS fails: {}; see the server's log", tls_->reason()));
  }
  return Unavailable(tls_->established()
                         ? "the server has broken off"
                         : "the server has broken off in the handshake; does it serve https?");
}

}  // namespace expertflow
