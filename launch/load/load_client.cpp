#include "launch/load/load_client.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/unique_fd.h"
#include "launch/load/answer_reader.h"

namespace expertflow {
namespace {

constexpr int kEvents = 256;
constexpr int kWaitMs = 100;
constexpr size_t kErrorBytesMax = 300;

// What can stand in a line.
std::string OneLine(std::string_view text) {
  return std::string(text.substr(0, std::min(text.find('\n'), kErrorBytesMax)));
}

class LoadRun {
 public:
  LoadRun(const ServerTarget& target, const std::vector<LoadRequest>& requests,
          const LoadClientOptions& options)
      : target_(target), requests_(requests), options_(options), outcomes_(requests.size()) {}

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
    std::optional<ServerStream> stream;  // nothing: closed
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
      Fail(request, fmt::format("all {} connections are in use", options_.connections_max));
      return;
    }
    Connect(request);
  }

  void Connect(size_t request) {
    Result<ServerStream> stream = ServerStream::Begin(target_);
    if (!stream.ok()) {
      Fail(request, stream.status().message());
      return;
    }
    Connection* added = &connections_.emplace_back();
    added->stream = std::move(*stream);
    added->place = std::prev(connections_.end());
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP;
    event.data.ptr = added;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, added->stream->fd(), &event) != 0) {
      Fail(request, FromErrno(errno, "epoll").message());
      connections_.pop_back();
      return;
    }
    Give(added, request);
  }

  void Give(Connection* connection, size_t request) {
    connection->request = request;
    connection->written = 0;
    connection->reader = AnswerReader([this, request](std::string_view json) {
      if (json.starts_with("{\"error\"")) outcomes_[request].error = OneLine(json);
    });
    connection->busy = true;
    WriteMore(connection);
  }

  void WriteMore(Connection* connection) {
    const std::string& bytes = requests_[connection->request].bytes;
    if (!connection->busy || connection->written == bytes.size()) return;
    const size_t count =
        connection->stream->Write(std::string_view(bytes).substr(connection->written));
    if (count > 0 && connection->written == 0) outcomes_[connection->request].sent_ns = Now();
    connection->written += count;
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
      // In this order: the end of a handshake lets the request go.
      Read(connection);
      WriteMore(connection);
    }
    // Not before: an event of the same turn may still name them.
    closed_.clear();
  }

  void Read(Connection* connection) {
    while (connection->stream) {
      text_.clear();
      const Result<ServerStream::Progress> progress = connection->stream->Read(&text_);
      if (!progress.ok()) {
        OnClosed(connection, progress.status());
      } else if (*progress == ServerStream::Progress::kClosed) {
        OnClosed(connection, OkStatus());
      } else if (*progress == ServerStream::Progress::kLater) {
        return;
      } else if (connection->busy) {  // else nobody asked
        TakeBytes(connection, text_);
      }
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
      Fail(connection->request, "the answer is no HTTP");
      Close(connection);
    } else if (found.complete) {
      // Behind half a request nothing can follow.
      const bool again = connection->reader.keep_alive() &&
                         connection->written == requests_[connection->request].bytes.size();
      Finish(connection->request, connection->reader);
      connection->busy = false;
      connection->used_before = true;
      if (again) {
        idle_.push_back(connection);
      } else {
        Close(connection);
      }
    }
  }

  // `status` is ok where the server has ended what it says.
  void OnClosed(Connection* connection, const Status& status) {
    if (connection->busy) {
      const size_t request = connection->request;
      if (status.ok() && connection->reader.CompleteAtClose()) {
        Finish(request, connection->reader);
      } else if (connection->used_before && connection->reader.status() == 0) {
        // It was idle and the server closed it as the request came: a client asks again.
        connection->busy = false;
        Close(connection);
        Connect(request);
        return;
      } else {
        Fail(request, status.ok() ? "the server has broken off" : status.message());
      }
    }
    Close(connection);
  }

  void Close(Connection* connection) {
    connection->busy = false;
    connection->stream.reset();
    std::erase(idle_, connection);
    closed_.splice(closed_.end(), connections_, connection->place);
  }

  void Finish(size_t request, const AnswerReader& reader) {
    LoadOutcome& outcome = outcomes_[request];
    outcome.done_ns = Now();
    outcome.status = reader.status();
    outcome.prompt_tokens = reader.prompt_tokens();
    outcome.completion_tokens = reader.completion_tokens();
    outcome.ok =
        outcome.status / 100 == 2 && !reader.has_error() && (!reader.is_stream() || reader.ended());
    if (!outcome.ok) {
      outcome.error = fmt::format("status {}{}{}", outcome.status,
                                  outcome.error.empty() ? "" : ": ", outcome.error);
    }
    ++done_;
  }

  void Fail(size_t request, std::string_view error) {
    outcomes_[request].done_ns = Now();
    outcomes_[request].error = OneLine(error);
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
        Fail(connection->request, "no whole answer within the time for it");
        Close(connection);
      }
      closed_.clear();
    }
  }

  const ServerTarget& target_;
  const std::vector<LoadRequest>& requests_;
  const LoadClientOptions& options_;
  std::vector<LoadOutcome> outcomes_;
  UniqueFd epoll_;
  int64_t begin_ns_ = 0;
  int64_t next_expiry_ns_ = 0;
  std::string text_;  // of one read
  size_t next_ = 0;
  size_t done_ = 0;
  std::list<Connection> connections_;
  std::list<Connection> closed_;
  std::vector<Connection*> idle_;
};

}  // namespace

Result<std::vector<LoadOutcome>> RunLoad(const ServerTarget& target,
                                         const std::vector<LoadRequest>& requests,
                                         const LoadClientOptions& options) {
  return LoadRun(target, requests, options).Run();
}

}  // namespace expertflow
