#include "transport/rendezvous.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "transport/rendezvous_protocol.h"
#include "transport/tcp_socket.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

using rendezvous::Kind;

constexpr int kEventsPerCall = 64;
constexpr size_t kHelloBytesPerRead = size_t{16} << 10;
constexpr int64_t kTimerNs = 250'000'000;
constexpr int64_t kDialPauseNs = 100'000'000;

Status Watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return FromErrno(errno, "cannot watch a socket");
  }
  return OkStatus();
}

// A reply is small against the socket's send buffer; one that does not fit is not worth waiting
// for.
Status SendNow(int fd, std::span<const uint8_t> bytes) {
  return WriteAll(fd, bytes, Deadline::AtNs(0));
}

}  // namespace

// --- server ------------------------------------------------------------------------------------

struct RendezvousServer::Handshake {
  Handshake(UniqueFd socket, std::string server_nonce, Deadline until)
      : fd(std::move(socket)),
        peer(PeerAddressOf(fd.get())),
        nonce(std::move(server_nonce)),
        deadline(until),
        splitter(rendezvous::kRequestBytesMax, rendezvous::kMagic) {}

  UniqueFd fd;
  std::string peer;
  std::string nonce;
  Deadline deadline;
  FrameSplitter splitter;
};

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::Listen(
    const RendezvousOptions& options) {
  CHECK(options.first_id.valid() && options.handshakes_max > 0);
  RETURN_IF_ERROR(rendezvous::CheckSecret(options.secret));
  std::unique_ptr<RendezvousServer> server(new RendezvousServer());
  server->options_ = options;
  server->next_id_ = options.first_id.value;
  ASSIGN_OR_RETURN(server->listener_, ListenTcp(options.address));
  server->address_ = LocalAddressOf(server->listener_.get());
  server->epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!server->epoll_.valid()) return FromErrno(errno, "cannot create an epoll descriptor");
  server->timer_.Reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!server->timer_.valid()) return FromErrno(errno, "cannot create a timer");
  RETURN_IF_ERROR(Watch(server->epoll_.get(), server->timer_.get()));
  server->WatchListener(true);
  return server;
}

RendezvousServer::~RendezvousServer() = default;

void RendezvousServer::WatchListener(bool watch) {
  if (watch == listener_watched_) return;
  listener_watched_ = watch;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener_.get();
  ::epoll_ctl(epoll_.get(), watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.get(), &event);
}

std::vector<Member> RendezvousServer::HandleReadable() {
  std::vector<Member> joined;
  std::array<epoll_event, kEventsPerCall> ready;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), kEventsPerCall, 0);
  for (int i = 0; i < count; ++i) {
    const int fd = ready[i].data.fd;
    const auto found = handshakes_.find(fd);
    if (fd == listener_.get()) AcceptClients();
    if (found == handshakes_.end()) continue;
    Result<std::optional<Member>> result = Advance(found->second.get());
    if (!result.ok()) {
      LogWarning("refused to let {} join: {}", found->second->peer, result.status().message());
    } else if (result->has_value()) {
      joined.push_back(std::move(**result));
    } else {
      continue;
    }
    handshakes_.erase(found);
  }
  CloseExpired();
  return joined;
}

void RendezvousServer::AcceptClients() {
  while (handshakes_.size() < options_.handshakes_max) {
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      break;
    }
    auto nonce = rendezvous::MakeNonce();
    if (!nonce.ok() || !Watch(epoll_.get(), client.get()).ok()) continue;
    const auto challenge = rendezvous::Encode(Kind::kChallenge, rendezvous::Challenge{*nonce});
    if (!SendNow(client.get(), challenge).ok()) continue;
    const int fd = client.get();
    handshakes_.emplace(fd, std::make_unique<Handshake>(std::move(client), *std::move(nonce),
                                                        Deadline::AfterNs(options_.handshake_ns)));
  }
}

void RendezvousServer::CloseExpired() {
  std::erase_if(handshakes_, [](const auto& entry) {
    if (!entry.second->deadline.Passed()) return false;
    LogWarning("refused to let {} join: it did not finish its handshake in time",
               entry.second->peer);
    return true;
  });
  // The timer runs only while there is something to expire: an idle job is not woken.
  uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t n = ::read(timer_.get(), &expirations, sizeof(expirations));
  itimerspec time{};
  if (!handshakes_.empty()) time.it_value.tv_nsec = kTimerNs;
  ::timerfd_settime(timer_.get(), 0, &time, nullptr);
  WatchListener(handshakes_.size() < options_.handshakes_max);
}

Result<std::optional<Member>> RendezvousServer::Advance(Handshake* handshake) {
  std::array<uint8_t, kHelloBytesPerRead> chunk;
  const ssize_t n = ::recv(handshake->fd.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return std::optional<Member>();
  }
  if (n <= 0) return Unavailable("it closed the connection");
  handshake->splitter.Append({chunk.data(), static_cast<size_t>(n)});
  ASSIGN_OR_RETURN(const std::span<const uint8_t> frame, handshake->splitter.Next());
  if (frame.empty()) return std::optional<Member>();
  auto result = Answer(handshake, frame);
  if (!result.ok()) {
    // Best effort: it is closed in any case.
    rendezvous::JoinReply refusal;
    refusal.code = static_cast<uint8_t>(result.status().code());
    refusal.message = result.status().message();
    SendNow(handshake->fd.get(), rendezvous::Encode(Kind::kJoinReply, refusal)).ok();
  }
  return result;
}

Result<std::optional<Member>> RendezvousServer::Answer(Handshake* handshake,
                                                       std::span<const uint8_t> frame) {
  ASSIGN_OR_RETURN(auto request,
                   rendezvous::Decode<rendezvous::JoinRequest>(Kind::kJoinRequest, frame));
  if (!rendezvous::IsNonce(request.client_nonce)) return InvalidArgument("malformed nonce");
  ASSIGN_OR_RETURN(
      const std::string expected,
      rendezvous::Prove("client", options_.secret, request.client_nonce, handshake->nonce));
  if (!rendezvous::SameProof(expected, request.proof)) {
    return InvalidArgument("wrong job secret; use the secret of the job at " + address_);
  }
  rendezvous::JoinReply reply;
  ASSIGN_OR_RETURN(reply.proof, rendezvous::Prove("server", options_.secret, handshake->nonce,
                                                  request.client_nonce));
  Member member{ProcessId(next_id_), std::move(request.info)};
  reply.id = member.id.value;
  for (const Member& known : members_) reply.members.push_back({known.id.value, known.info});
  reply.members.push_back({member.id.value, member.info});
  RETURN_IF_ERROR(SendNow(handshake->fd.get(), rendezvous::Encode(Kind::kJoinReply, reply)));
  ++next_id_;
  return std::optional(std::move(member));
}

// --- joiner ------------------------------------------------------------------------------------

namespace {

template <typename T>
Result<T> ReceiveFrame(int fd, Kind kind, Deadline deadline) {
  FrameSplitter splitter(rendezvous::kReplyBytesMax, rendezvous::kMagic);
  while (true) {
    std::vector<uint8_t> bytes;
    RETURN_IF_ERROR(ReadSome(fd, &bytes, deadline));
    splitter.Append(bytes);
    ASSIGN_OR_RETURN(const std::span<const uint8_t> frame, splitter.Next());
    if (!frame.empty()) return rendezvous::Decode<T>(kind, frame);
  }
}

}  // namespace

RendezvousWireUp::RendezvousWireUp(std::string address, std::string secret)
    : address_(std::move(address)), secret_(std::move(secret)) {}

Result<std::vector<Member>> RendezvousWireUp::Exchange(const ProcessInfo& self, Deadline deadline) {
  RETURN_IF_ERROR(rendezvous::CheckSecret(secret_));
  while (true) {
    auto members = ExchangeOnce(self, deadline);
    if (members.ok() || members.status().code() != StatusCode::kUnavailable) {
      if (members.ok()) return members;
      return members.status().WithContext("cannot join the job at " + address_);
    }
    if (deadline.RemainingNs() <= kDialPauseNs) {
      return DeadlineExceeded(fmt::format("cannot join the job at {} in time: {}", address_,
                                          members.status().message()));
    }
    const timespec pause{0, kDialPauseNs};
    ::nanosleep(&pause, nullptr);
  }
}

Result<std::vector<Member>> RendezvousWireUp::ExchangeOnce(const ProcessInfo& self,
                                                           Deadline deadline) {
  ASSIGN_OR_RETURN(const UniqueFd fd, ConnectTcp(address_, deadline));
  ASSIGN_OR_RETURN(const auto challenge,
                   ReceiveFrame<rendezvous::Challenge>(fd.get(), Kind::kChallenge, deadline));
  if (!rendezvous::IsNonce(challenge.server_nonce)) return InvalidArgument("malformed nonce");
  rendezvous::JoinRequest request;
  request.info = self;
  ASSIGN_OR_RETURN(request.client_nonce, rendezvous::MakeNonce());
  ASSIGN_OR_RETURN(request.proof, rendezvous::Prove("client", secret_, request.client_nonce,
                                                    challenge.server_nonce));
  RETURN_IF_ERROR(WriteAll(fd.get(), rendezvous::Encode(Kind::kJoinRequest, request), deadline));
  ASSIGN_OR_RETURN(const auto reply,
                   ReceiveFrame<rendezvous::JoinReply>(fd.get(), Kind::kJoinReply, deadline));
  // Whatever the server's reason, it is about what this process has brought.
  if (reply.code != 0) return InvalidArgument(reply.message);
  ASSIGN_OR_RETURN(
      const std::string expected,
      rendezvous::Prove("server", secret_, challenge.server_nonce, request.client_nonce));
  if (!rendezvous::SameProof(expected, reply.proof)) {
    return InvalidArgument("the server there does not know the job secret");
  }
  std::vector<Member> members;
  for (const rendezvous::MemberEntry& entry : reply.members) {
    members.push_back({ProcessId(entry.id), entry.info});
  }
  self_ = ProcessId(reply.id);
  return members;
}

}  // namespace expertflow
