// A store's or worker's connection to its coordinator: connects, sends, and waits for messages
// while it watches for the coordinator's death and for signals. A coordinator of another host gives
// signs of life, and its silence counts as its death: a cut link shows in nothing else. One thread;
// only the transport's Wake() may be called from another.
#pragma once

#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"
#include "common/unique_fd.h"
#include "transport/messages.h"
#include "transport/transport.h"
#include "transport/wireup.h"

namespace expertflow {

class CoordinatorLink {
 public:
  // kFailedPrecondition when `members` has no coordinator, kUnavailable when it has died already.
  // `silence_ns_max` is for a coordinator of another host. REQUIRES: transport and signals outlive
  // the link
  static Result<CoordinatorLink> Connect(Transport& transport, SignalWatcher& signals,
                                         const std::vector<Member>& members,
                                         int64_t silence_ns_max);

  // kResourceExhausted when the queue is full. Nothing else is an error here: a coordinator that is
  // gone shows in Receive().
  Status Send(const Message& message);
  // Replaces `messages` by what has arrived, after something happens or at the deadline. Once
  // everything that came before was returned: kUnavailable when the coordinator is gone, kCancelled
  // after a signal, an error for a message that cannot be read, and the coordinator's own words
  // when it turns this process away.
  Status Receive(Deadline deadline, std::vector<Message>* messages);
  // Lets what was sent leave, for a moment.
  void Flush();

 private:
  CoordinatorLink(Transport& transport, SignalWatcher& signals)
      : transport_(&transport), signals_(&signals) {}
  void Take(const std::vector<TransportEvent>& events, std::vector<Message>* messages);
  // A time in which this process did not ask is not the coordinator's silence.
  void ExcuseOwnPause();

  Transport* transport_;
  SignalWatcher* signals_;
  ProcessId coordinator_;
  UniqueFd death_;              // its pidfd, on the same host
  int64_t silence_ns_max_ = 0;  // 0: not watched
  int64_t last_heard_ns_ = 0;
  int64_t last_asked_ns_ = 0;
  Status end_;  // why there is nothing more to receive
};

}  // namespace expertflow
