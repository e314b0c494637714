// An HTTP/1.1 server in one thread: all connections in one epoll set, nothing ever blocks. Parsing
// is Boost.Beast's; this adds connections, limits and time-outs.
//
// A client costs a descriptor and its buffers, no thread, so idle, slow and half-open clients are
// harmless: when all places are taken, the client that has been without a request for longest goes.
// A client that closes its sending side counts as gone. With an identity all of it is TLS
// (tls.h); a handshake has the time of a request.
//
// The owner polls fd() for reading and calls HandleEvents(); it calls OnTick() a few times a
// second. HttpReplies may be called any time, also from within the handler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/status.h"
#include "serving/http/http.h"
#include "serving/http/tls.h"

namespace expertflow {

struct HttpServerOptions {
  std::string address = "127.0.0.1:8000";
  size_t connections_max = 4096;
  size_t request_bytes_max = size_t{8} << 20;   // a body; headers have 16 KiB
  int64_t request_timeout_ns = 30'000'000'000;  // from a request's first byte to its last
  int64_t idle_timeout_ns = 75'000'000'000;     // between requests
  int64_t write_timeout_ns = 30'000'000'000;    // an answer waits, and the client reads nothing
  size_t unsent_bytes_max = size_t{16} << 20;   // of one connection
  const TlsIdentity* tls = nullptr;             // outlives the server; null: plain HTTP
};

class HttpServer final : public HttpReplies {
 public:
  // REQUIRES: `handler` outlives the server
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options,
                                                    HttpHandler& handler);
  ~HttpServer() override;

  int fd() const;
  // "127.0.0.1:8000", with the port that the system chose for port 0.
  std::string address() const;
  void HandleEvents();
  void OnTick(int64_t now_ns);
  // Nothing is left to be written.
  bool Flushed() const;

  void Respond(HttpConnectionId connection, const HttpResponse& response) override;
  void StartStream(HttpConnectionId connection, std::string_view content_type) override;
  void Send(HttpConnectionId connection, std::string_view bytes) override;
  void EndStream(HttpConnectionId connection) override;
  HttpServerStats stats() const override;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace expertflow
