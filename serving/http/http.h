// What an HTTP request and its answer are for the code behind the server. Plain values; the server
// is http_server.h.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/http/trace_context.h"

namespace expertflow {

// Never reused. A connection has one request at a time; the next is read when that is answered.
struct HttpConnectionId {
  uint64_t value = 0;
  friend constexpr auto operator<=>(const HttpConnectionId&, const HttpConnectionId&) = default;
};

struct HttpRequest {
  HttpConnectionId connection;
  std::string method;  // "HEAD" arrives as "GET"; the server leaves the body out
  std::string path;    // without the query
  std::string authorization;
  std::string content_type;
  std::string id;      // 16 hex digits, this server's; every answer says it (X-Request-Id)
  TraceContext trace;  // of the caller
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};  // beyond the usual ones
};

struct HttpServerStats {
  size_t connections = 0;
  uint64_t accepted = 0;
  uint64_t evicted = 0;    // to make room
  uint64_t timed_out = 0;  // too slow with a request, or with reading the answer
};

// Where answers go. A connection that is gone takes everything and does nothing.
class HttpReplies {
 public:
  virtual ~HttpReplies() = default;
  virtual void Respond(HttpConnectionId connection, const HttpResponse& response) = 0;
  // An answer of unknown length: StartStream(), any number of Send(), EndStream().
  virtual void StartStream(HttpConnectionId connection, std::string_view content_type) = 0;
  virtual void Send(HttpConnectionId connection, std::string_view bytes) = 0;
  virtual void EndStream(HttpConnectionId connection) = 0;
  virtual HttpServerStats stats() const = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Answers now or later, through HttpReplies.
  virtual void OnRequest(const HttpRequest& request) = 0;
  // The client went away, or read too slowly, before its answer was complete.
  virtual void OnGone(HttpConnectionId connection) = 0;
  // An answer to a request that the server itself refuses: a malformed or too large one.
  virtual HttpResponse Refusal(int status, std::string_view what) const = 0;
};

}  // namespace expertflow
