// A client's connection with an HTTP server: a socket, or TLS over one, as the URL says. Nothing
// here waits: a caller with a loop of its own polls the descriptor and keeps the deadlines.
// launch/load/http_exchange.h waits. One thread.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"
#include "common/unique_fd.h"
#include "launch/load/server_url.h"
#include "serving/http/tls.h"

namespace expertflow {

// What connections with one server have in common.
struct ServerTarget {
  ServerUrl url;
  std::shared_ptr<const TlsTrust> trust;  // null: http
  sockaddr_storage address{};
  socklen_t address_size = 0;

  // Looks the host up. Of several addresses it is the first that takes a connection, for which
  // this waits. REQUIRES: `trust` exactly if the URL is of https
  static Result<ServerTarget> Find(ServerUrl url, std::shared_ptr<const TlsTrust> trust);
};

class ServerStream {
 public:
  // The connection is on its way when this returns. Here and below, errors say what to do but do
  // not name the server.
  static Result<ServerStream> Begin(const ServerTarget& target);

  int fd() const { return fd_.get(); }
  // Poll for room, too: some bytes wait for it.
  bool needs_room() const { return needs_room_; }

  // How many of `bytes` are given to the network now; none before the handshake is done. What stops
  // it for good is an error of the next Read().
  size_t Write(std::string_view bytes);

  enum class Progress {
    kSome,    // `text` has more; there may be still more
    kLater,   // nothing now
    kClosed,  // the server says nothing more
  };
  // Appends what has come to `text`. Also goes on with the handshake, and sends what waits.
  Result<Progress> Read(std::string* text);

 private:
  ServerStream(std::string host, UniqueFd fd, std::unique_ptr<TlsSession> tls)
      : host_(std::move(host)), fd_(std::move(fd)), tls_(std::move(tls)) {}

  size_t SendNow(std::string_view bytes);
  void Flush();
  Status Decrypt(std::string_view received, std::string* text);
  Status Broken() const;

  std::string host_;
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;  // null: http
  std::string out_;                  // encrypted
  bool begun_ = false;               // something has come
  bool closed_ = false;
  bool needs_room_ = false;
  int send_error_ = 0;
};

}  // namespace expertflow
