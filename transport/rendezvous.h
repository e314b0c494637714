// Wire-up over TCP for processes that join a running job: `--join host:port` with the job's secret.
//
// The coordinator owns a RendezvousServer and polls its one descriptor; everything about it is
// non-blocking and bounded, so that a silent, slow or hostile client costs a slot for a few seconds
// and nothing else. A joiner uses RendezvousWireUp.
//
// Both sides prove that they know the secret without sending it: a challenge and an answer through
// crypt(3) with SHA-256, salted by the other side's random nonce. That keeps strangers out of a
// job; it does not encrypt what follows, so a job's network must still be a trusted one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "transport/wireup.h"

namespace expertflow {

struct RendezvousOptions {
  // "host:port"; port 0 takes a free one. An empty host listens on every interface.
  std::string address;
  // 1 to 256 bytes without NUL; use a random one.
  std::string secret;
  // The first joiner's id; above those of the processes that are wired up already.
  ProcessId first_id;
  // Clients beyond this many unfinished handshakes wait in the listener's backlog.
  size_t handshakes_max = 16;
  int64_t handshake_ns = 5'000'000'000;
};

class RendezvousServer {
 public:
  // An address that cannot be used and a useless secret are kInvalidArgument.
  static Result<std::unique_ptr<RendezvousServer>> Listen(const RendezvousOptions& options);
  ~RendezvousServer();

  // Polls readable when HandleReadable() has something to do, time limits included.
  int fd() const { return epoll_.get(); }
  // "host:port" with the real port.
  const std::string& address() const { return address_; }

  // What joiners learn about the job; the coordinator keeps it current.
  void SetMembers(std::vector<Member> members) { members_ = std::move(members); }

  // Goes on with the handshakes; returns those that have just finished. The caller connects to them
  // and adds them to the members. A client that fails is logged and closed, never an error here.
  std::vector<Member> HandleReadable();

 private:
  struct Handshake;

  RendezvousServer() = default;
  void AcceptClients();
  // Reads, and answers; a Member when the handshake is done.
  Result<std::optional<Member>> Advance(Handshake* handshake);
  Result<std::optional<Member>> Answer(Handshake* handshake, std::span<const uint8_t> frame);
  void CloseExpired();
  void WatchListener(bool watch);

  RendezvousOptions options_;
  std::string address_;
  std::vector<Member> members_;
  int32_t next_id_ = 0;
  bool listener_watched_ = false;
  UniqueFd epoll_;
  UniqueFd listener_;
  UniqueFd timer_;
  std::map<int, std::unique_ptr<Handshake>> handshakes_;  // by descriptor
};

class RendezvousWireUp final : public WireUp {
 public:
  // `address` is "host:port" of the job's RendezvousServer.
  RendezvousWireUp(std::string address, std::string secret);

  // Retries until the deadline while nobody listens (the job may still be starting). A wrong secret
  // and a server of another version are kInvalidArgument at once.
  Result<std::vector<Member>> Exchange(const ProcessInfo& self, Deadline deadline) override;
  ProcessId self() const override { return self_; }

 private:
  Result<std::vector<Member>> ExchangeOnce(const ProcessInfo& self, Deadline deadline);

  std::string address_;
  std::string secret_;
  ProcessId self_;
};

}  // namespace expertflow
