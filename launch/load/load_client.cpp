#include "launch/load/load_client.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <memory>
#include <utility>

#include "common/clock.h"
#include "common/unique_fd.h"
#include "launch/load/answer_reader.h"

namespace expertflow {
namespace {

constexpr int kEvents = 256;
constexpr int kWaitMs = 100;

class LoadRun {
 public:
  LoadRun(ServerAddress address, const std::vector<LoadRequest>& requests,
          const LoadClientOptions& options)
      : address_(address), requests_(requests), options_(options), outcomes_(requests.size()) {}

  Result<std::vector<LoadOutcome>> Run() {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_.valid()) return FromErrno(errno, "epoll");
    begin_ns_ = NowNs();
    while (done_ < requests_.size()) {
      StartDue();
      Wait();
      ExpireOld();
    }
    return std::move(outcomes_);
  }

 private:
  struct Connection {
    UniqueFd fd;
    AnswerReader reader;
    size_t request = 0;
    size_t written = 0;
    bool busy = false;
    bool used_before = false;  // the server may have closed it meanwhile
    std::list<Connection>::iterator place;
  };

  int64_t Now() const { return NowNs() - begin_ns_; }

  void StartDue() {
    while (next_ < requests_.size() && requests_[next_].at_ns <= Now()) {
      outcomes_[next_].due_ns = requests_[next_].at_ns;
      Start(next_++);
    }
  }

  void Start(size_t request) {
    if (!idle_.empty()) {
      Connection* connection = idle_.back();
      idle_.pop_back();
      Give(connection, request);
      return;
    }
    if (connections_.size() >= options_.connections_max) {
      Finish(request, nullptr);
      return;
    }
    Connect(request);
  }

  void Connect(size_t request) {
    Connection connection;
    connection.fd =
        UniqueFd(::socket(address_.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int one = 1;
    if (connection.fd.valid()) {
      ::setsockopt(connection.fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    const bool started =
        connection.fd.valid() &&
        (::connect(connection.fd.get(), reinterpret_cast<const sockaddr*>(&address_.storage),
                   address_.size) == 0 ||
         errno == EINPROGRESS);
    if (!started) {
      Finish(request, nullptr);
      return;
    }
    connections_.push_back(std::move(connection));
    Connection* added = &connections_.back();
    added->place = std::prev(connections_.end());
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP;
    event.data.ptr = added;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, added->fd.get(), &event) != 0) {
      connections_.pop_back();
      Finish(request, nullptr);
      return;
    }
    Give(added, request);
  }

  void Give(Connection* connection, size_t request) {
    connection->request = request;
    connection->written = 0;
    connection->reader = AnswerReader();
    connection->busy = true;
    WriteMore(connection);
  }

  void WriteMore(Connection* connection) {
    const std::string& bytes = requests_[connection->request].bytes;
    while (connection->busy && connection->written < bytes.size()) {
      const ssize_t count = ::send(connection->fd.get(), bytes.data() + connection->written,
                                   bytes.size() - connection->written, MSG_NOSIGNAL);
      if (count < 0) return;  // not yet, or the next read tells
      if (connection->written == 0) outcomes_[connection->request].sent_ns = Now();
      connection->written += static_cast<size_t>(count);
    }
  }

  void Wait() {
    int wait_ms = kWaitMs;
    if (next_ < requests_.size()) {
      const int64_t until_ns = requests_[next_].at_ns - Now();
      wait_ms = static_cast<int>(std::clamp<int64_t>(until_ns / 1'000'000, 0, kWaitMs));
    }
    std::array<epoll_event, kEvents> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEvents, wait_ms);
    for (int i = 0; i < count; ++i) {
      auto* connection = static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr);
      WriteMore(connection);
      Read(connection);
    }
    // Not before: an event of the same turn may still name them.
    closed_.clear();
  }

  void Read(Connection* connection) {
    std::array<char, 65536> buffer;
    while (connection->fd.valid()) {
      const ssize_t count = ::recv(connection->fd.get(), buffer.data(), buffer.size(), 0);
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) return;
      if (count <= 0) {
        OnClosed(connection);
        return;
      }
      if (!connection->busy) continue;  // nobody asked
      TakeBytes(connection, {buffer.data(), static_cast<size_t>(count)});
    }
  }

  void TakeBytes(Connection* connection, std::string_view bytes) {
    LoadOutcome& outcome = outcomes_[connection->request];
    const AnswerReader::Found found = connection->reader.Push(bytes);
    if (found.pieces > 0) {
      const int64_t now_ns = Now();
      if (outcome.first_ns == 0) {
        outcome.first_ns = now_ns;
      } else {
        outcome.gaps_ms.push_back(static_cast<float>(now_ns - outcome.last_ns) / 1e6f);
      }
      outcome.last_ns = now_ns;
    }
    if (found.broken) {
      Finish(connection->request, nullptr);
      Close(connection);
    } else if (found.complete) {
      const bool again = connection->reader.keep_alive();
      Finish(connection->request, &connection->reader);
      connection->busy = false;
      connection->used_before = true;
      if (again) {
        idle_.push_back(connection);
      } else {
        Close(connection);
      }
    }
  }

  void OnClosed(Connection* connection) {
    if (connection->busy) {
      const size_t request = connection->request;
      if (connection->reader.CompleteAtClose()) {
        Finish(request, &connection->reader);
      } else if (connection->used_before && connection->reader.status() == 0) {
        // It was idle and the server closed it as the request came: a client asks again.
        connection->busy = false;
        Close(connection);
        Connect(request);
        return;
      } else {
        Finish(request, nullptr);
      }
    }
    Close(connection);
  }

  void Close(Connection* connection) {
    connection->busy = false;
    connection->fd.Reset();
    std::erase(idle_, connection);
    closed_.splice(closed_.end(), connections_, connection->place);
  }

  void Finish(size_t request, const AnswerReader* reader) {
    LoadOutcome& outcome = outcomes_[request];
    outcome.done_ns = Now();
    if (reader != nullptr) {
      outcome.status = reader->status();
      outcome.prompt_tokens = reader->prompt_tokens();
      outcome.completion_tokens = reader->completion_tokens();
      outcome.ok = outcome.status / 100 == 2 && !reader->has_error() &&
                   (!reader->is_stream() || reader->ended());
    }
    ++done_;
  }

  void ExpireOld() {
    if (const int64_t now_ns = Now(); now_ns >= next_expiry_ns_) {
      next_expiry_ns_ = now_ns + 1'000'000'000;
      for (auto at = connections_.begin(); at != connections_.end();) {
        Connection* connection = &*at++;
        if (!connection->busy) continue;
        const LoadOutcome& outcome = outcomes_[connection->request];
        if (now_ns - outcome.due_ns < options_.timeout_ns) continue;
        Finish(connection->request, nullptr);
        Close(connection);
      }
      closed_.clear();
    }
  }

  const ServerAddress address_;
  const std::vector<LoadRequest>& requests_;
  const LoadClientOptions& options_;
  std::vector<LoadOutcome> outcomes_;
  UniqueFd epoll_;
  int64_t begin_ns_ = 0;
  int64_t next_expiry_ns_ = 0;
  size_t next_ = 0;
  size_t done_ = 0;
  std::list<Connection> connections_;
  std::list<Connection> closed_;
  std::vector<Connection*> idle_;
};

}  // namespace

Result<std::vector<LoadOutcome>> RunLoad(const ServerUrl& target,
                                         const std::vector<LoadRequest>& requests,
                                         const LoadClientOptions& options) {
  ASSIGN_OR_RETURN(const ServerAddress address, ResolveServer(target));
  return LoadRun(address, requests, options).Run();
}

}  // namespace expertflow
