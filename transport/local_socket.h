// Clients of a job talk to its coordinator over an AF_UNIX stream socket that carries the messages
// of messages.h.
//
// The coordinator owns one LocalServer and a LocalConnection per client, all non-blocking: it polls
// their descriptors in its event loop. A client owns one LocalConnection and usually blocks in
// ReceiveOne(). One thread per object. Nothing here raises SIGPIPE.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"
#include "transport/messages.h"
#include "transport/wire.h"

namespace expertflow {

class LocalConnection {
 public:
  // Bounds what waits for a slow reader; a longer message is refused too.
  static constexpr size_t kQueuedBytesMax = size_t{64} << 20;

  // kNotFound when nobody listens at `path`. Waits only while the listener's backlog is full.
  static Result<LocalConnection> Connect(const std::string& path, Deadline deadline);

  // Queues `message` and writes what the socket takes now. kResourceExhausted when the peer reads
  // too slowly and the queue is full (nothing is queued then), kUnavailable when closed().
  Status Send(const Message& message);
  // Writes what the socket takes now; call when fd() polls writable. A gone peer closes.
  Status Flush();
  // True while Flush() has something to write: poll for POLLOUT.
  bool wants_write() const { return written_ < out_.size(); }
  // Writes everything that is queued.
  Status FlushAll(Deadline deadline);

  // Reads what has arrived and appends whole messages; reads a bounded amount per call, so a fast
  // sender cannot hold the caller. A peer that closed is no error: closed() becomes true after its
  // last message. A peer that sends anything but messages is kInvalidArgument, and closed.
  Status Receive(std::vector<Message>* messages);
  // Waits for the next message. kUnavailable when the peer closes, kDeadlineExceeded.
  Result<Message> ReceiveOne(Deadline deadline);

  // -1 when closed.
  int fd() const { return fd_.get(); }
  bool closed() const { return !fd_.valid(); }
  void Close();

 private:
  friend class LocalServer;
  explicit LocalConnection(UniqueFd fd);

  UniqueFd fd_;
  std::vector<uint8_t> out_;
  size_t written_ = 0;  // of out_
  FrameSplitter in_;
  std::deque<Message> received_;  // by ReceiveOne(), beyond the one it returned
};

class LocalServer {
 public:
  // Creates the socket with mode 0600. A socket file that nobody listens at is replaced; one that
  // is in use is kFailedPrecondition. A path longer than the system allows, or a file of another
  // kind in its place, is kInvalidArgument.
  static Result<LocalServer> Listen(const std::string& path);

  LocalServer(LocalServer&& other) noexcept;
  LocalServer& operator=(LocalServer&& other) noexcept;
  // Removes the socket file, unless another server has replaced it.
  ~LocalServer();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // A client that waits, or nothing. Never blocks.
  Result<std::optional<LocalConnection>> Accept();

 private:
  LocalServer(UniqueFd fd, std::string path, dev_t device, ino_t inode);

  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace expertflow
