// A network inside one process, for tests: virtual time, seeded delays, lost peers, partitions.
//
// Deterministic while one thread drives it: the same seed and calls give the same deliveries. With
// delay 0 it also connects threads that each own one transport (Send() then wakes the receiver's
// Poll()). Poll() waits in real time, up to its deadline, when nothing is due at the virtual now;
// tests that drive virtual time pass a deadline that has passed, and call AdvanceNs().
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.h"

namespace expertflow {

struct FakeNetworkOptions {
  uint64_t seed = 1;
  // Each message takes a delay from this range. Messages of one peer keep their order; those of
  // different peers overtake each other.
  int64_t delay_ns_min = 0;
  int64_t delay_ns_max = 0;
  // From a peer's end to kPeerDown at its peers.
  int64_t detection_ns = 0;
};

// Outlives its transports. Thread-safe.
class FakeNetwork {
 public:
  explicit FakeNetwork(const FakeNetworkOptions& options = {});
  ~FakeNetwork();

  // REQUIRES: no other transport of this network has had the id `self`.
  std::unique_ptr<Transport> Create(ProcessId self);
  static std::string AddressOf(ProcessId id);

  int64_t now_ns() const;
  void AdvanceNs(int64_t ns);
  // When the next message, kPeerDown or planned end of a process is due, or -1: how far a test must
  // advance.
  int64_t NextDueNs() const;

  // The process ends at virtual time `at_ns` (or now, when that has passed): what it sent before
  // arrives, what is sent to it is lost, its peers see kPeerDown. Its own transport stays silent.
  // Destroying a transport does the same at once.
  void KillAt(ProcessId id, int64_t at_ns);

  // While partitioned, messages between the two wait, as on a cut link: no error is seen. Heal()
  // lets them through.
  void Partition(ProcessId a, ProcessId b);
  void Heal(ProcessId a, ProcessId b);

  struct State;  // in the .cpp, shared with the transports

 private:
  std::shared_ptr<State> state_;
};

}  // namespace expertflow
