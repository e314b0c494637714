#include "common/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "common/check.h"

extern char** environ;

namespace expertflow {
namespace {

// Files of /proc have no size, so ReadFileToString() does not fit. Empty when unreadable.
std::string ReadProcFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string content;
  char buffer[4096];
  while (fd.valid()) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    content.append(buffer, static_cast<size_t>(n));
  }
  return content;
}

struct ProcStat {
  char state = '?';
  int64_t start_ticks = 0;
};

std::optional<ProcStat> ReadProcStat(pid_t pid) {
  const std::string text = ReadProcFile(fmt::format("/proc/{}/stat", pid));
  // The second field is the program's name in parentheses and may itself contain any character.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::string_view rest = std::string_view(text).substr(name_end + 1);
  ProcStat stat;
  constexpr int kStateField = 3;
  constexpr int kStartField = 22;
  for (int field = kStateField; field <= kStartField; ++field) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    const std::string_view value = rest.substr(0, rest.find(' '));
    if (value.empty()) return std::nullopt;
    if (field == kStateField) stat.state = value[0];
    if (field == kStartField) {
      const char* end = value.data() + value.size();
      if (std::from_chars(value.data(), end, stat.start_ticks).ec != std::errc()) {
        return std::nullopt;
      }
    }
    rest.remove_prefix(value.size());
  }
  return stat;
}

// The header of glibc 2.36 declares pidfd_open() for C only.
UniqueFd PidFdOpen(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

sigset_t WatchedSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

std::string ReadBootId() {
  std::string id = ReadProcFile("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

Result<int64_t> ProcessStartTicks(pid_t pid) {
  const auto stat = ReadProcStat(pid);
  if (!stat) return NotFound(fmt::format("no process {}", pid));
  return stat->start_ticks;
}

bool ProcessAlive(pid_t pid, int64_t start_ticks) {
  const auto stat = ReadProcStat(pid);
  return stat && stat->start_ticks == start_ticks && stat->state != 'Z' && stat->state != 'X';
}

Result<UniqueFd> OpenPidFd(pid_t pid, int64_t start_ticks) {
  UniqueFd fd = PidFdOpen(pid);
  if (!fd.valid()) {
    if (errno == ESRCH) return NotFound(fmt::format("no process {}", pid));
    return FromErrno(errno, fmt::format("cannot watch process {}", pid));
  }
  // Checked after opening: from here on the descriptor stays with the process it was opened for.
  if (start_ticks != 0 && !ProcessAlive(pid, start_ticks)) {
    return NotFound(fmt::format("process {} has ended", pid));
  }
  return fd;
}

Status DieWithParent(int signal, pid_t expected_parent) {
  if (::prctl(PR_SET_PDEATHSIG, signal) != 0) {
    return FromErrno(errno, "cannot ask for a signal at the parent's death");
  }
  // A parent that died before the call above sends nothing.
  if (::getppid() != expected_parent) {
    return Unavailable(fmt::format("the parent process {} has ended", expected_parent));
  }
  return OkStatus();
}

void SetProcessName(const std::string& name) {
  ::prctl(PR_SET_NAME, name.substr(0, 15).c_str());
}

Result<SignalWatcher> SignalWatcher::Create() {
  const sigset_t set = WatchedSignals();
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return FromErrno(error, "cannot block SIGINT and SIGTERM");
  }
  UniqueFd fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd.valid()) return FromErrno(errno, "cannot watch SIGINT and SIGTERM");
  return SignalWatcher(std::move(fd));
}

std::optional<int> SignalWatcher::Take() {
  signalfd_siginfo info;
  if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

// --- children ----------------------------------------------------------------------------------

namespace {

std::vector<std::string> MergedEnvironment(const std::vector<std::string>& additions) {
  std::vector<std::string> merged;
  const auto name_of = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const bool replaced = std::any_of(
        additions.begin(), additions.end(),
        [&](const std::string& addition) { return name_of(addition) == name_of(*entry); });
    if (!replaced) merged.emplace_back(*entry);
  }
  merged.insert(merged.end(), additions.begin(), additions.end());
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct ChildSetup {
  const SpawnOptions* options;
  char** argv;
  char** environment;
  int null_fd;
  int error_fd;
  pid_t parent;
};

// Between fork and exec only async-signal-safe calls are allowed: everything else is prepared.
[[noreturn]] void RunChild(const ChildSetup& setup) {
  const SpawnOptions& options = *setup.options;
  const int stdin_fd = options.stdin_fd >= 0 ? options.stdin_fd : setup.null_fd;
  const int wanted[3] = {stdin_fd, options.stdout_fd, options.stderr_fd};
  int error = 0;
  // Copies above 2 first: a wanted descriptor may itself be 0, 1 or 2.
  int copies[3] = {-1, -1, -1};
  for (int i = 0; i < 3 && error == 0; ++i) {
    if (wanted[i] < 0) continue;
    copies[i] = ::fcntl(wanted[i], F_DUPFD_CLOEXEC, 3);
    if (copies[i] < 0) error = errno;
  }
  for (int i = 0; i < 3 && error == 0; ++i) {
    if (copies[i] >= 0 && ::dup2(copies[i], i) < 0) error = errno;
  }
  if (error == 0 && options.new_process_group && ::setpgid(0, 0) != 0) error = errno;
  if (error == 0 && options.parent_death_signal != 0) {
    if (::prctl(PR_SET_PDEATHSIG, options.parent_death_signal) != 0) error = errno;
    if (::getppid() != setup.parent) ::_exit(128 + options.parent_death_signal);
  }
  if (error == 0) {
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    environ = setup.environment;
    ::execvp(setup.argv[0], setup.argv);
    error = errno;
  }
  [[maybe_unused]] const ssize_t n = ::write(setup.error_fd, &error, sizeof(error));
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(pid_t pid, UniqueFd pidfd, bool leads_group)
    : pid_(pid), pidfd_(std::move(pidfd)), leads_group_(leads_group) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept {
  *this = std::move(other);
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(leads_group_, other.leads_group_);
  std::swap(exit_code_, other.exit_code_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || exit_code_) return;
  Kill(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<int> ChildProcess::Wait(Deadline deadline) {
  constexpr int kSliceMs = 60'000;
  while (!exit_code_) {
    int wait_status = 0;
    const pid_t reaped = ::waitpid(pid_, &wait_status, WNOHANG);
    if (reaped < 0 && errno != EINTR) {
      return FromErrno(errno, fmt::format("cannot wait for process {}", pid_));
    }
    if (reaped == pid_) {
      exit_code_ = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
      break;
    }
    if (deadline.Passed()) {
      return DeadlineExceeded(fmt::format("process {} is still running", pid_));
    }
    pollfd waiting{pidfd_.get(), POLLIN, 0};
    ::poll(&waiting, 1, deadline.RemainingMs(kSliceMs));
  }
  return *exit_code_;
}

void ChildProcess::Kill(int signal) {
  if (pid_ <= 0) return;
  if (leads_group_) {
    // Also after the leader has been reaped: its group lives on while it has members.
    ::kill(-pid_, signal);
  } else if (!exit_code_) {
    ::kill(pid_, signal);
  }
}

Result<ChildProcess> SpawnProcess(const SpawnOptions& options) {
  CHECK(!options.argv.empty());
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = MergedEnvironment(options.environment);
  std::vector<char*> argv = Pointers(arguments);
  std::vector<char*> envp = Pointers(environment);
  const std::string what = fmt::format("cannot start '{}'", options.argv[0]);

  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return FromErrno(errno, what);
  UniqueFd error_in(pipe_fds[0]);
  UniqueFd error_out(pipe_fds[1]);
  UniqueFd null_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd.valid()) return FromErrno(errno, "cannot open /dev/null");

  const ChildSetup setup{&options,      argv.data(),     envp.data(),
                         null_fd.get(), error_out.get(), ::getpid()};
  const pid_t pid = ::fork();
  if (pid < 0) return FromErrno(errno, what);
  if (pid == 0) RunChild(setup);

  error_out.Reset();
  int error = 0;
  ssize_t n;
  do {
    n = ::read(error_in.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  UniqueFd pidfd;
  if (n != sizeof(error)) {
    error = 0;
    pidfd = PidFdOpen(pid);
    if (!pidfd.valid()) error = errno;
  }
  if (error != 0) {
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return FromErrno(error, what);
  }
  return ChildProcess(pid, std::move(pidfd), options.new_process_group);
}

}  // namespace expertflow
