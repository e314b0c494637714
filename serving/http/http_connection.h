// One client of the HTTP server: bytes in, a parser, bytes out, and what state it is in. Internal
// to the server.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/unique_fd.h"
#include "serving/http/http.h"
#include "serving/http/tls.h"

namespace expertflow {

// Cuts the bytes of a connection into requests.
class HttpRequestReader {
 public:
  static constexpr uint32_t kHeaderBytesMax = 16 << 10;

  explicit HttpRequestReader(size_t body_bytes_max);
  ~HttpRequestReader();

  struct Outcome {
    bool complete = false;        // `request` is one; call Next() for the one after it
    int error = 0;                // an HTTP status; the connection cannot go on
    std::string what = {};        // about the error
    bool wants_continue = false;  // send "100 Continue": the client waits before it sends the body
  };
  // What is left over stays for the next request.
  Outcome Push(std::string_view bytes);
  void Next();
  // REQUIRES, for these: complete
  HttpRequest TakeRequest();
  bool keep_alive() const;
  bool is_http_1_1() const;
  bool is_head() const;

  // Part of a request has arrived.
  bool started() const { return started_; }
  size_t waiting_bytes() const { return waiting_.size(); }

 private:
  struct Parser;
  const size_t body_bytes_max_;
  std::unique_ptr<Parser> parser_;  // null before the first byte
  std::string waiting_;             // not parsed yet
  bool started_ = false;
  bool continued_ = false;
};

struct HttpConnection {
  enum class State {
    kReading,    // a request, or waits for one
    kAnswering,  // the handler has it
    kStreaming,  // the answer's head is out
    kClosing,    // writes the rest, then closes
    kLingering,  // all is written; reads until the client closes, so that it sees the answer
  };

  HttpConnection(HttpConnectionId connection_id, UniqueFd socket, size_t body_bytes_max)
      : id(connection_id), fd(std::move(socket)), reader(body_bytes_max) {}

  bool in_request() const { return state == State::kAnswering || state == State::kStreaming; }
  bool in_handshake() const { return tls != nullptr && !tls->established(); }

  const HttpConnectionId id;
  UniqueFd fd;
  std::unique_ptr<TlsSession> tls;  // null: plain HTTP
  HttpRequestReader reader;
  State state = State::kReading;
  std::string answer_headers;  // of the request, for the head of its answer
  std::string out;             // as the network gets it
  size_t written = 0;          // of `out`
  uint32_t events = 0;         // that epoll watches
  bool keep_alive = true;
  bool chunked = true;
  bool head_only = false;
  bool has_next = false;                        // bytes of a further request are in the reader
  bool broken = false;                          // to be removed
  int64_t since_ns = 0;                         // of the state, or of a request's first byte
  int64_t wrote_ns = 0;                         // the last byte, or when the first began to wait
  std::list<HttpConnectionId>::iterator place;  // among those without a request
};

}  // namespace expertflow
