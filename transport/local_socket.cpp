#include "transport/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <libgen.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "transport/transport.h"

namespace expertflow {
namespace {

constexpr size_t kReadChunkBytes = size_t{64} << 10;
constexpr size_t kLocalReadBytesMax = size_t{1} << 20;
constexpr int kBacklog = 64;
constexpr int kLocalPollMs = 60'000;
constexpr int64_t kReplaceLockNs = 1'000'000'000;
constexpr int64_t kLocalRetryNs = 1'000'000;

Result<sockaddr_un> MakeAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(
        fmt::format("socket path '{}' has {} bytes, a socket's path must have 1 to {}; choose a "
                    "shorter run directory",
                    path, path.size(), sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd MakeSocket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

int TryConnect(int fd, const sockaddr_un& address) {
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                          : errno;
}

void SleepNs(int64_t ns) {
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  ::nanosleep(&time, nullptr);
}

// Serialises servers that replace a stale socket in one folder: without it the second could remove
// the socket that the first has just made.
Result<UniqueFd> LockFolderOf(const std::string& path) {
  std::string copy = path;
  const std::string folder = ::dirname(copy.data());
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return FromErrno(errno, "cannot open folder " + folder);
  const Deadline deadline = Deadline::AfterNs(kReplaceLockNs);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FromErrno(errno, "cannot lock " + folder);
    if (deadline.Passed()) {
      return Unavailable(fmt::format("folder {} stays locked by another process", folder));
    }
    SleepNs(kLocalRetryNs);
  }
  return fd;
}

// Removes `path` when it is a socket at which nobody listens.
Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? OkStatus() : FromErrno(errno, "cannot stat " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return InvalidArgument(path + ": exists and is not a socket; remove it or choose another path");
  }
  const UniqueFd probe = MakeSocket();
  if (!probe.valid()) return FromErrno(errno, "cannot create a socket");
  const int error = TryConnect(probe.get(), address);
  if (error == 0 || error == EAGAIN) {
    return FailedPrecondition(path +
                              ": another job listens at this socket; stop it or choose "
                              "another run directory");
  }
  if (error != ECONNREFUSED && error != ENOENT) return FromErrno(error, "cannot probe " + path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return FromErrno(errno, "cannot remove the stale socket " + path);
  }
  return OkStatus();
}

}  // namespace

// --- LocalConnection ---------------------------------------------------------------------------

LocalConnection::LocalConnection(UniqueFd fd)
    : fd_(std::move(fd)), in_(Transport::kMessageBytesMax) {}

Result<LocalConnection> LocalConnection::Connect(const std::string& path, Deadline deadline) {
  ASSIGN_OR_RETURN(const sockaddr_un address, MakeAddress(path));
  UniqueFd fd = MakeSocket();
  if (!fd.valid()) return FromErrno(errno, "cannot create a socket");
  while (true) {
    const int error = TryConnect(fd.get(), address);
    if (error == 0) return LocalConnection(std::move(fd));
    if (error == ENOENT || error == ECONNREFUSED) {
      return NotFound(fmt::format("no job listens at {}", path));
    }
    if (error != EAGAIN && error != EINTR) return FromErrno(error, "cannot connect to " + path);
    if (deadline.Passed()) {
      return DeadlineExceeded(fmt::format("the job at {} does not accept connections", path));
    }
    SleepNs(kLocalRetryNs);
  }
}

void LocalConnection::Close() {
  fd_.Reset();
  out_.clear();
  written_ = 0;
}

Status LocalConnection::Send(const Message& message) {
  if (closed()) return Unavailable("the connection is closed");
  const std::vector<uint8_t> bytes = EncodeMessage(message);
  const size_t queued = out_.size() - written_;
  if (bytes.size() > kQueuedBytesMax - queued) {
    return ResourceExhausted(
        fmt::format("{} of {} bytes does not fit: {} bytes wait for a peer that reads too slowly "
                    "(limit {})",
                    MessageName(message), bytes.size(), queued, kQueuedBytesMax));
  }
  // Sent bytes go only when they outweigh the rest: each byte is moved at most once on average.
  if (written_ > 0 && written_ >= queued) {
    out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(written_));
    written_ = 0;
  }
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  return Flush();
}

Status LocalConnection::Flush() {
  if (closed()) return Unavailable("the connection is closed");
  while (wants_write()) {
    const ssize_t n = ::send(fd_.get(), out_.data() + written_, out_.size() - written_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return OkStatus();
    if (n < 0) {
      const int error = errno;
      // What the peer sent before it went may still be unread; Receive() closes at its end.
      out_.clear();
      written_ = 0;
      if (error == EPIPE || error == ECONNRESET) return Unavailable("the peer has closed");
      Close();
      return FromErrno(error, "cannot write to the connection");
    }
    written_ += static_cast<size_t>(n);
  }
  out_.clear();
  written_ = 0;
  return OkStatus();
}

Status LocalConnection::FlushAll(Deadline deadline) {
  while (true) {
    RETURN_IF_ERROR(Flush());
    if (!wants_write()) return OkStatus();
    if (deadline.Passed()) {
      return DeadlineExceeded(
          fmt::format("the peer did not read {} bytes in time", out_.size() - written_));
    }
    pollfd waiting{fd_.get(), POLLOUT, 0};
    ::poll(&waiting, 1, deadline.RemainingMs(kLocalPollMs));
  }
}

Status LocalConnection::Receive(std::vector<Message>* messages) {
  for (Message& message : received_) messages->push_back(std::move(message));
  received_.clear();
  uint8_t chunk[kReadChunkBytes];
  bool ended = false;
  for (size_t total = 0; !closed() && !ended && total < kLocalReadBytesMax;) {
    const ssize_t n = ::recv(fd_.get(), chunk, sizeof(chunk), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    ended = n <= 0;
    if (ended) break;
    total += static_cast<size_t>(n);
    in_.Append({chunk, static_cast<size_t>(n)});
    while (true) {
      const auto frame = in_.Next();
      if (frame.ok() && frame->empty()) break;
      Result<Message> message =
          frame.ok() ? DecodeMessage(*frame) : Result<Message>(frame.status());
      if (!message.ok()) {
        Close();
        return message.status();
      }
      messages->push_back(std::move(*message));
    }
  }
  if (ended) Close();
  return OkStatus();
}

Result<Message> LocalConnection::ReceiveOne(Deadline deadline) {
  while (received_.empty()) {
    std::vector<Message> messages;
    const Status status = Receive(&messages);
    for (Message& message : messages) received_.push_back(std::move(message));
    if (!received_.empty()) break;
    RETURN_IF_ERROR(status);
    if (closed()) return Unavailable("the peer has closed the connection");
    if (deadline.Passed()) return DeadlineExceeded("no message from the peer in time");
    RETURN_IF_ERROR(Flush());
    pollfd waiting{fd_.get(), static_cast<int16_t>(POLLIN | (wants_write() ? POLLOUT : 0)), 0};
    ::poll(&waiting, 1, deadline.RemainingMs(kLocalPollMs));
  }
  Message message = std::move(received_.front());
  received_.pop_front();
  return message;
}

// --- LocalServer -------------------------------------------------------------------------------

Result<LocalServer> LocalServer::Listen(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, MakeAddress(path));
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFolderOf(path));
  RETURN_IF_ERROR(RemoveStaleSocket(path, address));
  UniqueFd fd = MakeSocket();
  if (!fd.valid()) return FromErrno(errno, "cannot create a socket");
  // Linux gives the socket file this mode when it is bound: it is never more open, not even
  // briefly.
  if (::fchmod(fd.get(), 0600) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return FromErrno(errno, "cannot create the socket " + path);
  }
  struct stat info;
  if (::listen(fd.get(), kBacklog) != 0 || ::lstat(path.c_str(), &info) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return FromErrno(error, "cannot listen at " + path);
  }
  return LocalServer(std::move(fd), path, info.st_dev, info.st_ino);
}

LocalServer::LocalServer(UniqueFd fd, std::string path, dev_t device, ino_t inode)
    : fd_(std::move(fd)), path_(std::move(path)), device_(device), inode_(inode) {}

LocalServer::LocalServer(LocalServer&& other) noexcept {
  *this = std::move(other);
}

LocalServer& LocalServer::operator=(LocalServer&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

LocalServer::~LocalServer() {
  struct stat info;
  if (fd_.valid() && ::lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

Result<std::optional<LocalConnection>> LocalServer::Accept() {
  while (true) {
    UniqueFd client(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.valid()) return std::optional(LocalConnection(std::move(client)));
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<LocalConnection>();
    return FromErrno(errno, "cannot accept a client at " + path_);
  }
}

}  // namespace expertflow
