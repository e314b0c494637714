#include "launch/load/http_get.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "common/unique_fd.h"
#include "launch/load/answer_reader.h"

namespace expertflow {
namespace {

constexpr int kPollMs = 1000;

}  // namespace

Result<std::string> HttpGet(const ServerUrl& url, const ServerAddress& address,
                            const std::string& path, const std::string& key, Deadline deadline) {
  ASSIGN_OR_RETURN(const UniqueFd fd, ConnectServer(url, address));
  const std::string request = url.Head("GET", path, key) + "Connection: close\r\n\r\n";
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return FromErrno(errno, "send");
  }
  std::string body;
  AnswerReader reader([&body](std::string_view text) { body = text; });
  while (!deadline.Passed()) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (::poll(&ready, 1, deadline.RemainingMs(kPollMs)) <= 0) continue;
    std::array<char, 65536> buffer;
    const ssize_t count = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) return Unavailable(url.host + ": the server has broken off");
    const AnswerReader::Found found = reader.Push({buffer.data(), static_cast<size_t>(count)});
    if (found.broken) return Unavailable(url.host + ": the answer is no HTTP");
    if (!found.complete) continue;
    if (reader.status() == 200) return body;
    return Unavailable(fmt::format("{}: status {}: {}", path, reader.status(), body));
  }
  return DeadlineExceeded(fmt::format("{}:{} does not answer", url.host, url.port));
}

}  // namespace expertflow
