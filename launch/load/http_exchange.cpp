#include "launch/load/http_exchange.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace expertflow {
namespace {

constexpr int64_t kConnectNs = 10'000'000'000;
constexpr int kExchangePollMs = 60'000;

// Until something may go on.
Status AwaitStream(const ServerStream& stream, const ExchangeLimits& limits, Deadline deadline) {
  const auto events = static_cast<int16_t>(POLLIN | (stream.needs_room() ? POLLOUT : 0));
  std::array<pollfd, 2> ready = {{{stream.fd(), events, 0}, {-1, POLLIN, 0}}};
  if (limits.signals != nullptr) ready[1].fd = limits.signals->fd();
  if (::poll(ready.data(), ready.size(), deadline.RemainingMs(kExchangePollMs)) < 0 &&
      errno != EINTR) {
    return FromErrno(errno, "poll");
  }
  if (limits.signals != nullptr && limits.signals->Take()) return Cancelled("a signal came");
  return OkStatus();
}

Status RunExchange(const ServerTarget& target, std::string_view request,
                   const ExchangeLimits& limits, AnswerReader* reader) {
  ASSIGN_OR_RETURN(ServerStream stream, ServerStream::Begin(target));
  size_t written = 0;
  Deadline deadline = Deadline::AfterNs(kConnectNs);
  const auto renew = [&deadline, &limits] { deadline = Deadline::AfterNs(limits.silence_ns); };
  for (;;) {
    std::string text;
    ASSIGN_OR_RETURN(const ServerStream::Progress progress, stream.Read(&text));
    if (progress == ServerStream::Progress::kSome) {
      const AnswerReader::Found found = reader->Push(text);
      if (found.broken) return Unavailable("the answer is no HTTP");
      if (found.complete) return OkStatus();
      renew();
      continue;
    }
    if (progress == ServerStream::Progress::kClosed) {
      if (reader->CompleteAtClose()) return OkStatus();
      return Unavailable("the server has broken off");
    }
    if (const size_t count = stream.Write(request.substr(written)); count > 0) {
      written += count;
      renew();
    }
    const Deadline until =
        limits.whole ? Deadline::AtNs(std::min(deadline.at_ns(), limits.whole->at_ns())) : deadline;
    if (until.Passed()) {
      return DeadlineExceeded(written > 0 ? "the server does not answer in time"
                              : target.url.secure
                                  ? "no connection and handshake in time; is it a server of https?"
                                  : "no connection in time; is the server running?");
    }
    RETURN_IF_ERROR(AwaitStream(stream, limits, until));
  }
}

}  // namespace

Status Exchange(const ServerTarget& target, std::string_view request, const ExchangeLimits& limits,
                AnswerReader* reader) {
  return RunExchange(target, request, limits, reader).WithContext(target.url.Text());
}

Result<std::string> HttpGet(const ServerTarget& target, const std::string& path,
                            const std::string& key, Deadline deadline) {
  std::string body;
  AnswerReader reader([&body](std::string_view text) { body = text; });
  const std::string request = target.url.Head("GET", path, key) + "Connection: close\r\n\r\n";
  RETURN_IF_ERROR(Exchange(target, request, {.whole = deadline}, &reader));
  if (reader.status() == 200) return body;
  return Unavailable(
      fmt::format("{}{}: status {}: {}", target.url.Text(), path, reader.status(), body));
}

}  // namespace expertflow
