// Restores the order of what peers send over a fabric that may complete a small message before an
// earlier big one, and holds what a peer sends before this process has connected to it. Internal to
// transport/; pure bookkeeping, one thread.
//
// A sender numbers its connections (growing) and, within one, its messages from 0. Everything a
// connection delivers belongs to that connection: after Close() the rest of it is dropped, and only
// a newer one is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace expertflow {

class InboundStreams {
 public:
  // Bounds what is held for senders that are not open, all together, and for one open sender whose
  // earlier message is missing.
  static constexpr size_t kEarlyBytesMax = Transport::kMessageBytesMax;
  static constexpr size_t kHeldBytesMax = Transport::kQueuedBytesMax + Transport::kMessageBytesMax;

  // A message of `sender` is complete. A sender that passes a bound, or repeats a number, is
  // broken.
  void Put(ProcessId sender, uint64_t connection, uint64_t number, std::vector<uint8_t> message);
  // A message of `sender` is lost: what follows it cannot be delivered.
  void Break(ProcessId sender, uint64_t connection, Status reason);

  // Starts delivery from `sender`; what it has sent already counts.
  void Open(ProcessId sender);
  // Ends it, and drops what is held of its connection.
  void Close(ProcessId sender);

  // Appends the messages of open senders that are next in order.
  void TakeReady(std::vector<TransportEvent>* events);
  // The open senders that are broken, with the reasons; each until it is closed.
  std::vector<std::pair<ProcessId, Status>> Broken() const;

 private:
  struct Stream {
    uint64_t next_number = 0;
    std::map<uint64_t, std::vector<uint8_t>> held;
    size_t held_bytes = 0;
    Status broken;
  };
  // Streams of one sender by connection; the first is the one that is delivered.
  struct Sender {
    bool open = false;
    uint64_t closed_through = 0;
    std::map<uint64_t, Stream> streams;
  };

  // Null when the connection is over.
  Stream* Find(ProcessId sender, uint64_t connection);
  // Whether the stream counts against the early bound.
  bool Early(const Sender& sender, uint64_t connection) const;

  std::map<ProcessId, Sender> senders_;
  size_t early_bytes_ = 0;
};

}  // namespace expertflow
