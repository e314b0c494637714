// A small HTTP client for the tests: it blocks, and says exactly what it is told to say.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/clock.h"
#include "common/unique_fd.h"

namespace expertflow::testing {

class HttpClient {
 public:
  explicit HttpClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }

  bool connected() const { return connected_; }
  void Send(const std::string& text) {
    (void)!::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  void Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    Send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         "Connection: close\r\n" + headers + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body);
  }
  void Get(const std::string& path, const std::string& headers = "") {
    Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers +
         "\r\n");
  }
  // Everything that has come, head included, once `end` is in it, or the server has closed.
  const std::string& ReadUntil(const std::string& end, int64_t ms = 60'000) {
    const Deadline deadline = Deadline::AfterMs(ms);
    while (end.empty() || all_.find(end) == std::string::npos) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, deadline.RemainingMs(60'000)) <= 0) break;
      char buffer[65536];
      const ssize_t count = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      all_.append(buffer, static_cast<size_t>(count));
    }
    return all_;
  }
  const std::string& ReadAll() { return ReadUntil(""); }
  // Ends the connection as a crash does: the server gets a reset.
  void Reset() {
    const linger reset{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    fd_.Reset();
  }

 private:
  UniqueFd fd_;
  bool connected_ = false;
  std::string all_;
};

// "HTTP/1.1 200 OK..." -> 200
inline int StatusOf(const std::string& answer) {
  return answer.size() < 12 ? 0 : std::atoi(answer.c_str() + 9);
}

// The values of every "name":"..." in the order they come, joined. `text` is JSON or a stream of
// it; only the escapes of our own writer are known.
inline std::string JoinedStrings(const std::string& text, const std::string& name) {
  const std::string key = "\"" + name + "\":\"";
  std::string joined;
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at)) {
    for (at += key.size(); at < text.size() && text[at] != '"'; ++at) {
      if (text[at] != '\\') {
        joined += text[at];
        continue;
      }
      ++at;
      switch (text[at]) {
        case 'n': joined += '\n'; break;
        case 'r': joined += '\r'; break;
        case 't': joined += '\t'; break;
        case 'u':
          joined += static_cast<char>(std::strtol(text.substr(at + 1, 4).c_str(), nullptr, 16));
          at += 4;
          break;
        default: joined += text[at];
      }
    }
  }
  return joined;
}

// The chunks of an answer without their sizes.
inline std::string Unchunked(const std::string& answer) {
  std::string body;
  size_t at = answer.find("\r\n\r\n");
  if (at == std::string::npos) return body;
  at += 4;
  while (at < answer.size()) {
    const size_t size = std::strtoul(answer.c_str() + at, nullptr, 16);
    at = answer.find("\r\n", at);
    if (at == std::string::npos || size == 0) break;
    body += answer.substr(at + 2, size);
    at += size + 4;
  }
  return body;
}

}  // namespace expertflow::testing
