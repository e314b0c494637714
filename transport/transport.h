// The message transport between the processes of a job (ARCHITECTURE 1).
//
// Control messages only: expert bytes on one host are read from the mapped store. A transport is
// owned by one thread; only Wake() may be called from another. It never blocks but in Poll(), and
// Poll() has a deadline: no failure of a peer can hang a caller. Peers are known by the process id
// that wire-up gave them; messages of one peer arrive in order, those of different peers in any
// order.
//
// Implementations: UCX active messages (transport_ucx) and a deterministic fake (fake_transport.h).
#pragma once

#include <poll.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"

namespace expertflow {

// A process of the job. Given out at wire-up (the MPI rank, or by the rendezvous), never reused.
using ProcessId = StrongId<struct ProcessTag>;

struct TransportEvent {
  enum class Kind { kMessage, kPeerDown };
  Kind kind = Kind::kMessage;
  ProcessId peer;
  std::vector<uint8_t> message;  // kMessage
  Status reason;                 // kPeerDown: why; reported once per connection
};

class Transport {
 public:
  // Bounds: a longer message is refused by Send(), and so is one for a peer that has this much
  // queued.
  static constexpr size_t kMessageBytesMax = size_t{64} << 20;
  static constexpr size_t kQueuedBytesMax = size_t{256} << 20;

  virtual ~Transport() = default;

  // Who this process is, for one that learns it only at wire-up (a joiner). REQUIRES: before the
  // first Connect(), and only when the transport was made without an id
  virtual void SetSelf(ProcessId self) = 0;

  // What a peer needs for Connect(): opaque bytes, exchanged at wire-up.
  virtual std::string LocalAddress() const = 0;

  // Makes `peer` reachable. Does not wait for it; a peer that cannot be reached shows as kPeerDown.
  // Both sides connect to each other.
  virtual Status Connect(ProcessId peer, const std::string& address) = 0;
  // Drops the connection and everything queued for it. No event follows.
  virtual void Disconnect(ProcessId peer) = 0;

  // Queues a copy of `message`. kResourceExhausted when the peer's queue is full, kUnavailable when
  // the peer is not connected.
  virtual Status Send(ProcessId peer, std::span<const uint8_t> message) = 0;

  // Progresses; waits until there is an event, one of `others` is ready (its revents is set),
  // Wake() was called, or `deadline` passes. Spins some tens of microseconds, then sleeps. Appends
  // to `events`; a passed deadline is not an error.
  virtual Status Poll(Deadline deadline, std::span<pollfd> others,
                      std::vector<TransportEvent>* events) = 0;

  // Ends a Poll() in progress, or the next one. Any thread.
  virtual void Wake() = 0;

  // True when nothing that Send() accepted still waits to leave this process.
  virtual bool Flushed() const = 0;
};

}  // namespace expertflow
