#include "launch/bench/bench_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "common/clock.h"
#include "common/unique_fd.h"

namespace expertflow {
namespace {

constexpr int kStartMs = 60'000;
constexpr int kEndMs = 30'000;

// What comes until `end` is in it.
Result<std::string> ReadUntil(int fd, std::string_view end, Deadline deadline) {
  std::string text;
  while (text.find(end) == std::string::npos) {
    pollfd waiting{fd, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, deadline.RemainingMs(kStartMs));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return DeadlineExceeded("the server did not get ready in time");
    std::array<char, 4096> buffer{};
    const ssize_t bytes = ::read(fd, buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return Unavailable("the server ended before it was ready");
    text.append(buffer.data(), static_cast<size_t>(bytes));
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<BenchServer>> BenchServer::Start(const std::string& program,
                                                        const std::string& model,
                                                        const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  SpawnOptions options;
  options.argv = {program, "serve", "--model", model, "--listen", "127.0.0.1:0"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.stdout_fd = input.get();
  options.parent_death_signal = SIGTERM;
  ASSIGN_OR_RETURN(ChildProcess child, SpawnProcess(options));
  input.Reset();
  ASSIGN_OR_RETURN(const std::string text,
                   ReadUntil(output.get(), "ready\n", Deadline::AfterMs(kStartMs)));
  const size_t at = text.find("http://");
  if (at == std::string::npos) return Internal("the server did not say its address: " + text);
  ASSIGN_OR_RETURN(ServerUrl url,
                   ServerUrl::Parse(text.substr(at, text.find_first_of(" \n", at) - at)));
  ASSIGN_OR_RETURN(ServerTarget target, ServerTarget::Find(std::move(url), nullptr));
  return std::unique_ptr<BenchServer>(new BenchServer(std::move(child), std::move(target)));
}

BenchServer::~BenchServer() {
  child_.Kill(SIGTERM);
  (void)child_.Wait(Deadline::AfterMs(kEndMs));
}

}  // namespace expertflow
