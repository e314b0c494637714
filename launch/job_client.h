// A client of a running job: talks to its coordinator through the job's socket. One thread.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "transport/local_socket.h"
#include "transport/messages.h"

namespace expertflow {

class JobClient {
 public:
  // kNotFound when nobody listens (yet).
  static Result<JobClient> Connect(const std::string& socket_path, Deadline deadline);
  // To the job with this folder, or else with this name, or else the newest of this user; both may
  // be empty. kNotFound names what was looked for.
  static Result<JobClient> Find(const std::string& job, const std::string& folder,
                                Deadline deadline);

  Status Submit(const SubmitRequest& request, Deadline deadline);
  Status Cancel(uint64_t request, Deadline deadline);
  Status RequestShutdown(Deadline deadline);
  // For a caller with a loop of its own: queues, and writes what the socket takes now. While
  // wants_write(), poll for POLLOUT and call Flush().
  Status Post(const Message& message) { return connection_.Send(message); }
  bool wants_write() const { return connection_.wants_write(); }
  Status Flush() { return connection_.Flush(); }
  // Messages that arrive meanwhile are kept for Take().
  Result<std::string> QueryStatus(Deadline deadline);   // JSON
  Result<std::string> QueryMetrics(Deadline deadline);  // Prometheus text

  // Polls readable when Receive() has something to read.
  int fd() const { return connection_.fd(); }
  // The coordinator closed the connection; Take() may still have messages.
  bool closed() const { return connection_.closed(); }
  // Reads what has arrived, never blocks.
  Status Receive();
  // The next message that was received.
  std::optional<Message> Take();

 private:
  explicit JobClient(LocalConnection connection) : connection_(std::move(connection)) {}
  Status Send(const Message& message, Deadline deadline);
  // Receives until a message of this type has come.
  template <typename T>
  Result<T> Await(Deadline deadline);

  LocalConnection connection_;
  std::deque<Message> received_;
};

}  // namespace expertflow
