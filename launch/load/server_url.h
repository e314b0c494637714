// Where an HTTP server is, as a user writes it.
#pragma once

#include <string>

#include "common/status.h"

namespace expertflow {

struct ServerUrl {
  std::string host;  // a name or an address, which has no brackets here
  std::string port;
  std::string path;     // of the URL; without a slash at its end
  bool secure = false;  // https

  // "http://127.0.0.1:8000", "https://host", with a path or without.
  static Result<ServerUrl> Parse(const std::string& url);
  // How messages name it.
  std::string Text() const;
  // The beginning of a request of this server: request line, host and key.
  std::string Head(const std::string& method, const std::string& path_below,
                   const std::string& key) const;

 private:
  std::string Authority() const;  // "[::1]:8000"
};

}  // namespace expertflow
