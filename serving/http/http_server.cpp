#include "serving/http/http_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <list>
#include <map>
#include <random>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "serving/http/http_connection.h"
#include "transport/tcp_socket.h"

namespace expertflow {
namespace {

using State = HttpConnection::State;

constexpr int kBacklog = 4096;
constexpr int kAcceptsPerTurn = 256;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr int64_t kLingerNs = 2'000'000'000;
constexpr uint64_t kListenerTag = 0;  // connections count from 1

std::string_view Reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
  }
  return "Status";
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpServerOptions& options, HttpHandler& handler)
      : options_(options), handler_(handler) {}

  Status Init();
  void HandleEvents();
  void OnTick(int64_t now_ns);
  bool Flushed() const;
  HttpServerStats stats() const;

  void Respond(HttpConnectionId id, const HttpResponse& response);
  void StartStream(HttpConnectionId id, std::string_view content_type);
  void Send(HttpConnectionId id, std::string_view bytes);
  void EndStream(HttpConnectionId id);

  int fd() const { return epoll_.get(); }
  std::string address() const { return LocalAddressOf(listener_.get()); }

 private:
  void Accept();
  bool MakeRoom();
  void Read(HttpConnection* connection);
  void OnClosed(HttpConnection* connection);
  // Encrypted bytes: what the client says of them.
  std::string Decrypt(HttpConnection* connection, std::string_view received);
  void TakeBytes(HttpConnection* connection, std::string_view bytes);
  void Write(HttpConnection* connection, std::string_view bytes);
  void Queue(HttpConnection* connection, std::string_view bytes);
  void Flush(HttpConnection* connection);
  void Written(HttpConnection* connection);
  void EndOfAnswer(HttpConnection* connection);
  void Refuse(HttpConnection* connection, int status, std::string_view what);
  void SetState(HttpConnection* connection, State state);
  void Watch(HttpConnection* connection);
  void Break(HttpConnection* connection) {
    connection->broken = true;
    broken_.push_back(connection->id);
  }
  void Sweep();
  HttpConnection* Find(HttpConnectionId id, State state);
  HttpConnection* Find(HttpConnectionId id);

  const HttpServerOptions options_;
  HttpHandler& handler_;
  UniqueFd epoll_;
  UniqueFd listener_;
  bool accepting_ = true;
  uint64_t last_id_ = kListenerTag;
  std::map<HttpConnectionId, HttpConnection> connections_;
  std::list<HttpConnectionId> waiting_;  // without a request, the longest first
  std::list<HttpConnectionId> active_;
  std::list<HttpConnectionId> broken_;
  HttpServerStats stats_;
  std::array<char, kReadBytes> buffer_;
  std::mt19937_64 random_{std::random_device{}()};
};

Status HttpServer::Impl::Init() {
  ASSIGN_OR_RETURN(listener_, ListenTcp(options_.address));
  // Again, for a longer queue: clients come in bursts.
  if (::listen(listener_.get(), kBacklog) != 0) return FromErrno(errno, options_.address);
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return FromErrno(errno, "epoll");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kListenerTag}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) {
    return FromErrno(errno, "epoll");
  }
  return OkStatus();
}

// --- connections -------------------------------------------------------------------------------

HttpConnection* HttpServer::Impl::Find(HttpConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() || found->second.broken ? nullptr : &found->second;
}

HttpConnection* HttpServer::Impl::Find(HttpConnectionId id, State state) {
  HttpConnection* connection = Find(id);
  return connection != nullptr && connection->state == state ? connection : nullptr;
}

// When nobody can be turned out, the newcomer is.
bool HttpServer::Impl::MakeRoom() {
  if (waiting_.empty()) return false;
  HttpConnection& longest = connections_.at(waiting_.front());
  if (!longest.broken) {
    ++stats_.evicted;
    Break(&longest);
  }
  Sweep();
  return true;
}

void HttpServer::Impl::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // No descriptors left: the kernel would tell us again and again.
      if ((errno == EMFILE || errno == ENFILE) && MakeRoom()) continue;
      if (errno != EAGAIN) {
        LogWarning("cannot accept an HTTP connection: {}", FromErrno(errno, "accept").message());
        epoll_event none{.events = 0, .data = {.u64 = kListenerTag}};
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &none);
        accepting_ = false;
      }
      return;
    }
    if (connections_.size() >= options_.connections_max && !MakeRoom()) continue;
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const HttpConnectionId id{++last_id_};
    auto [place, added] =
        connections_.try_emplace(id, id, std::move(fd), options_.request_bytes_max);
    HttpConnection& connection = place->second;
    if (options_.tls != nullptr) connection.tls = options_.tls->NewSession();
    connection.place = waiting_.insert(waiting_.end(), id);
    connection.since_ns = NowNs();
    connection.events = EPOLLIN;
    epoll_event event{.events = connection.events, .data = {.u64 = id.value}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.fd.get(), &event) != 0) {
      Break(&connection);
    }
    ++stats_.accepted;
  }
}

void HttpServer::Impl::SetState(HttpConnection* connection, State state) {
  const bool was_waiting = connection->state == State::kReading;
  const bool waits = state == State::kReading;
  if (was_waiting != waits) {
    (waits ? waiting_ : active_)
        .splice(waits ? waiting_.end() : active_.end(), was_waiting ? waiting_ : active_,
                connection->place);
  }
  connection->state = state;
  connection->since_ns = NowNs();
}

void HttpServer::Impl::Watch(HttpConnection* connection) {
  uint32_t events = 0;
  if (connection->in_request()) {
    events |= EPOLLRDHUP;  // a request that comes early waits in the kernel
  } else if (connection->state != State::kClosing) {
    events |= EPOLLIN;
  }
  // A request that was read along with the last one gets its turn at once.
  if (connection->written < connection->out.size() || connection->has_next) events |= EPOLLOUT;
  if (events == connection->events || connection->broken) return;
  connection->events = events;
  epoll_event event{.events = events, .data = {.u64 = connection->id.value}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection->fd.get(), &event);
}

void HttpServer::Impl::Sweep() {
  while (!broken_.empty()) {
    const HttpConnectionId id = broken_.front();
    broken_.pop_front();
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    const bool in_request = found->second.in_request();
    const bool waits = found->second.state == State::kReading;
    (waits ? waiting_ : active_).erase(found->second.place);
    connections_.erase(found);
    if (in_request) handler_.OnGone(id);
  }
}

void HttpServer::Impl::HandleEvents() {
  std::array<epoll_event, 256> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kListenerTag) {
      Accept();
      continue;
    }
    HttpConnection* connection = Find(HttpConnectionId{events[i].data.u64});
    if (connection == nullptr) continue;
    const uint32_t what = events[i].events;
    if ((what & EPOLLOUT) != 0) Flush(connection);
    if (!connection->broken && connection->has_next) TakeBytes(connection, "");
    if (!connection->broken && (what & EPOLLIN) != 0) Read(connection);
    if (!connection->broken && (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0 &&
        (connection->in_request() || (what & (EPOLLHUP | EPOLLERR)) != 0)) {
      Break(connection);
    }
    if (!connection->broken) Watch(connection);
  }
  Sweep();
}

void HttpServer::Impl::OnTick(int64_t now_ns) {
  if (!accepting_) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = kListenerTag}};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
    accepting_ = true;
  }
  for (auto& [id, connection] : connections_) {
    if (connection.broken) continue;
    const int64_t age_ns = now_ns - connection.since_ns;
    const bool unsent = connection.written < connection.out.size();
    if (unsent && now_ns - connection.wrote_ns > options_.write_timeout_ns) {
      ++stats_.timed_out;
      Break(&connection);
    } else if (connection.state == State::kLingering && age_ns > kLingerNs) {
      Break(&connection);
    } else if (connection.state == State::kReading && connection.in_handshake()) {
      if (age_ns <= options_.request_timeout_ns) continue;
      ++stats_.timed_out;
      Break(&connection);
    } else if (connection.state == State::kReading && connection.reader.started()) {
      if (age_ns <= options_.request_timeout_ns) continue;
      ++stats_.timed_out;
      Refuse(&connection, 408, "the request did not arrive in time");
    } else if (connection.state == State::kReading && age_ns > options_.idle_timeout_ns) {
      Break(&connection);
    }
  }
  Sweep();
}

bool HttpServer::Impl::Flushed() const {
  for (const auto& [id, connection] : connections_) {
    if (!connection.broken && connection.written < connection.out.size()) return false;
  }
  return true;
}

HttpServerStats HttpServer::Impl::stats() const {
  HttpServerStats stats = stats_;
  stats.connections = connections_.size();
  return stats;
}

// --- reading -----------------------------------------------------------------------------------

void HttpServer::Impl::Read(HttpConnection* connection) {
  if (connection->in_request()) return;  // it began in this turn
  const ssize_t count = ::recv(connection->fd.get(), buffer_.data(), buffer_.size(), 0);
  if (count < 0) {
    if (errno != EAGAIN && errno != EINTR) Break(connection);
    return;
  }
  if (count == 0) {
    OnClosed(connection);
    return;
  }
  if (connection->state != State::kReading) return;  // kLingering: nobody reads it any more
  const std::string_view received(buffer_.data(), static_cast<size_t>(count));
  if (connection->tls == nullptr) {
    TakeBytes(connection, received);
  } else if (const std::string text = Decrypt(connection, received); !text.empty()) {
    TakeBytes(connection, text);
  }
}

void HttpServer::Impl::OnClosed(HttpConnection* connection) {
  if (connection->written < connection->out.size()) {
    SetState(connection, State::kClosing);
  } else {
    Break(connection);
  }
}

std::string HttpServer::Impl::Decrypt(HttpConnection* connection, std::string_view received) {
  const bool in_handshake = connection->in_handshake();
  std::string text;
  std::string network;
  const TlsSession::Outcome outcome = connection->tls->Receive(received, &text, &network);
  if (in_handshake && !connection->in_handshake()) connection->since_ns = NowNs();
  Queue(connection, network);
  if (connection->broken) return "";
  switch (outcome) {
    case TlsSession::Outcome::kOpen: break;
    case TlsSession::Outcome::kClosed:
      if (text.empty()) OnClosed(connection);
      break;
    case TlsSession::Outcome::kPlainHttp:
      connection->tls.reset();
      Refuse(connection, 400, "this server speaks TLS: use https://");
      break;
    case TlsSession::Outcome::kBroken:
      // It gets to know why.
      SetState(connection, State::kClosing);
      Flush(connection);
      return "";
  }
  return text;
}

void HttpServer::Impl::TakeBytes(HttpConnection* connection, std::string_view bytes) {
  if (!connection->reader.started()) connection->since_ns = NowNs();
  connection->has_next = false;
  const HttpRequestReader::Outcome outcome = connection->reader.Push(bytes);
  if (outcome.error != 0) {
    Refuse(connection, outcome.error, outcome.what);
    return;
  }
  if (outcome.wants_continue) Write(connection, "HTTP/1.1 100 Continue\r\n\r\n");
  if (!outcome.complete || connection->broken) return;
  connection->keep_alive = connection->reader.keep_alive();
  connection->chunked = connection->reader.is_http_1_1();
  connection->head_only = connection->reader.is_head();
  HttpRequest request = connection->reader.TakeRequest();
  request.connection = connection->id;
  request.id = SpanIdText(random_());
  connection->answer_headers = fmt::format("X-Request-Id: {}\r\n", request.id);
  if (const std::string trace = TraceparentOf(request.trace, request.id); !trace.empty()) {
    connection->answer_headers += fmt::format("traceparent: {}\r\n", trace);
  }
  connection->reader.Next();
  SetState(connection, State::kAnswering);
  handler_.OnRequest(request);
}

void HttpServer::Impl::Refuse(HttpConnection* connection, int status, std::string_view what) {
  connection->keep_alive = false;
  connection->answer_headers.clear();  // of a request before it
  SetState(connection, State::kAnswering);
  Respond(connection->id, handler_.Refusal(status, what));
}

// --- answering ---------------------------------------------------------------------------------

void HttpServer::Impl::Write(HttpConnection* connection, std::string_view bytes) {
  if (connection->broken) return;
  if (connection->tls == nullptr) {
    Queue(connection, bytes);
    return;
  }
  std::string network;
  if (!connection->tls->Send(bytes, &network)) {
    Break(connection);
    return;
  }
  Queue(connection, network);
}

void HttpServer::Impl::Queue(HttpConnection* connection, std::string_view bytes) {
  if (connection->broken || bytes.empty()) return;
  if (connection->written == connection->out.size()) {
    connection->out.clear();
    connection->written = 0;
    connection->wrote_ns = NowNs();
  }
  if (connection->out.size() - connection->written + bytes.size() > options_.unsent_bytes_max) {
    ++stats_.timed_out;
    Break(connection);
    return;
  }
  if (connection->written > connection->out.size() / 2) {
    connection->out.erase(0, connection->written);
    connection->written = 0;
  }
  connection->out += bytes;
  Flush(connection);
}

void HttpServer::Impl::Flush(HttpConnection* connection) {
  while (connection->written < connection->out.size()) {
    const ssize_t count =
        ::send(connection->fd.get(), connection->out.data() + connection->written,
               connection->out.size() - connection->written, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) Break(connection);
      break;
    }
    connection->written += static_cast<size_t>(count);
    connection->wrote_ns = NowNs();
  }
  if (!connection->broken && connection->written == connection->out.size()) Written(connection);
  Watch(connection);
}

void HttpServer::Impl::Written(HttpConnection* connection) {
  if (connection->state != State::kClosing) return;
  ::shutdown(connection->fd.get(), SHUT_WR);
  SetState(connection, State::kLingering);
}

void HttpServer::Impl::EndOfAnswer(HttpConnection* connection) {
  if (connection->broken) return;
  if (!connection->keep_alive) {
    SetState(connection, State::kClosing);
    std::string network;
    if (connection->tls != nullptr) connection->tls->Close(&network);
    Queue(connection, network);
    Flush(connection);
    return;
  }
  SetState(connection, State::kReading);
  connection->has_next = connection->reader.waiting_bytes() > 0;
  Watch(connection);
}

void HttpServer::Impl::Respond(HttpConnectionId id, const HttpResponse& response) {
  HttpConnection* connection = Find(id, State::kAnswering);
  if (connection == nullptr) return;
  std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: {}\r\n{}",
      response.status, Reason(response.status), response.content_type, response.body.size(),
      connection->keep_alive ? "keep-alive" : "close", connection->answer_headers);
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += "\r\n";
  if (!connection->head_only) text += response.body;
  Write(connection, text);
  EndOfAnswer(connection);
}

void HttpServer::Impl::StartStream(HttpConnectionId id, std::string_view content_type) {
  HttpConnection* connection = Find(id, State::kAnswering);
  if (connection == nullptr) return;
  // Without chunks the end of the connection is the end of the answer.
  if (!connection->chunked) connection->keep_alive = false;
  SetState(connection, State::kStreaming);
  Write(connection,
        fmt::format("HTTP/1.1 200 OK\r\nContent-Type: {}\r\nCache-Control: no-cache\r\n"
                    "{}Connection: {}\r\n{}\r\n",
                    content_type, connection->chunked ? "Transfer-Encoding: chunked\r\n" : "",
                    connection->keep_alive ? "keep-alive" : "close", connection->answer_headers));
}

void HttpServer::Impl::Send(HttpConnectionId id, std::string_view bytes) {
  HttpConnection* connection = Find(id, State::kStreaming);
  if (connection == nullptr || bytes.empty() || connection->head_only) return;
  if (connection->chunked) {
    Write(connection, fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
  } else {
    Write(connection, bytes);
  }
}

void HttpServer::Impl::EndStream(HttpConnectionId id) {
  HttpConnection* connection = Find(id, State::kStreaming);
  if (connection == nullptr) return;
  if (connection->chunked && !connection->head_only) Write(connection, "0\r\n\r\n");
  EndOfAnswer(connection);
}

// --- outside -----------------------------------------------------------------------------------

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options,
                                                       HttpHandler& handler) {
  auto impl = std::make_unique<Impl>(options, handler);
  RETURN_IF_ERROR(impl->Init());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::fd() const {
  return impl_->fd();
}
std::string HttpServer::address() const {
  return impl_->address();
}
void HttpServer::HandleEvents() {
  impl_->HandleEvents();
}
void HttpServer::OnTick(int64_t now_ns) {
  impl_->OnTick(now_ns);
}
bool HttpServer::Flushed() const {
  return impl_->Flushed();
}
HttpServerStats HttpServer::stats() const {
  return impl_->stats();
}
void HttpServer::Respond(HttpConnectionId connection, const HttpResponse& response) {
  impl_->Respond(connection, response);
}
void HttpServer::StartStream(HttpConnectionId connection, std::string_view content_type) {
  impl_->StartStream(connection, content_type);
}
void HttpServer::Send(HttpConnectionId connection, std::string_view bytes) {
  impl_->Send(connection, bytes);
}
void HttpServer::EndStream(HttpConnectionId connection) {
  impl_->EndStream(connection);
}

}  // namespace expertflow
