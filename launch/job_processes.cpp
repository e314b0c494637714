#include "launch/job_processes.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "common/process.h"
#include "common/unique_fd.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kKillWaitMs = 1000;

std::vector<std::string_view> SplitWords(std::string_view command_line) {
  std::vector<std::string_view> words;
  while (!command_line.empty()) {
    const size_t end = command_line.find('\0');
    words.push_back(command_line.substr(0, end));
    command_line.remove_prefix(end == std::string_view::npos ? command_line.size() : end + 1);
  }
  return words;
}

bool IsRoleOf(std::string_view command_line, std::string_view job) {
  const std::vector<std::string_view> words = SplitWords(command_line);
  if (words.size() < 2 ||
      (words[1] != "coordinator" && words[1] != "store" && words[1] != "worker")) {
    return false;
  }
  for (size_t i = 2; i + 1 < words.size(); ++i) {
    if (words[i] == "--job" && words[i + 1] == job) return true;
  }
  return false;
}

bool WaitUntilDead(pid_t pid, Deadline deadline) {
  Result<UniqueFd> fd = OpenPidFd(pid);
  if (!fd.ok()) return true;
  pollfd waiting{fd->get(), POLLIN, 0};
  return ::poll(&waiting, 1, deadline.RemainingMs(60'000)) > 0;
}

}  // namespace

std::vector<pid_t> FindJobProcesses(const std::string& job) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [stop, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc() || stop != name.data() + name.size() || pid == ::getpid()) continue;
    struct stat status {};
    if (::stat(entry->path().c_str(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    std::ifstream file(entry->path() / "cmdline", std::ios::binary);
    const std::string command_line{std::istreambuf_iterator<char>(file), {}};
    if (IsRoleOf(command_line, job)) found.push_back(pid);
  }
  return found;
}

void EndJobProcesses(const std::string& job, Deadline deadline) {
  for (const pid_t pid : FindJobProcesses(job)) {
    if (WaitUntilDead(pid, deadline)) continue;
    ::kill(pid, SIGKILL);
    WaitUntilDead(pid, Deadline::AfterMs(kKillWaitMs));
  }
}

}  // namespace expertflow
