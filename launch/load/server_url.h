// Where an HTTP server is, from what a user writes to an address that a socket takes.
#pragma once

#include <sys/socket.h>

#include <string>

#include "common/status.h"
#include "common/unique_fd.h"

namespace expertflow {

struct ServerUrl {
  std::string host;
  std::string port;
  std::string path;  // of the URL; without a slash at its end

  // "http://127.0.0.1:8000" or with a path.
  static Result<ServerUrl> Parse(const std::string& url);
  // The beginning of a request of this server: request line, host and key.
  std::string Head(const std::string& method, const std::string& path_below,
                   const std::string& key) const;
};

struct ServerAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family = 0;
};

// The first that the system knows.
Result<ServerAddress> ResolveServer(const ServerUrl& url);

// Waits for the connection.
Result<UniqueFd> ConnectServer(const ServerUrl& url, const ServerAddress& address);

}  // namespace expertflow
