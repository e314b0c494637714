// This process, other processes of the host, and what the host lets us use: identity and liveness
// that survive pid reuse, children that end with their parent, signals as a descriptor, and the
// memory and cores that remain after cgroup limits.
//
// Linux only. All functions are thread-safe unless they say otherwise.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace expertflow {

// --- identity and liveness ---------------------------------------------------------------------

// Differs after every boot: tells a pid of this boot from one of an earlier boot.
std::string ReadBootId();
std::string HostName();

// Clock ticks since boot at which `pid` started: tells a reused pid apart. kNotFound when there is
// no such process.
Result<int64_t> ProcessStartTicks(pid_t pid);
// True while the process that started at `start_ticks` runs. A zombie counts as dead.
bool ProcessAlive(pid_t pid, int64_t start_ticks);
// A descriptor that polls readable once the process is dead. With `start_ticks` other than 0 a pid
// that now belongs to another process is kNotFound.
Result<UniqueFd> OpenPidFd(pid_t pid, int64_t start_ticks = 0);

// The kernel sends `signal` to this process when its parent dies. `expected_parent` is the parent
// that the caller knows about (getppid() at the top of main, or handed down by the parent): when it
// is gone already, the call returns kUnavailable and the caller should exit. The signal also comes
// when only the parent's thread that forked us ends.
Status DieWithParent(int signal, pid_t expected_parent);

// As `ps` and `top` show it; cut to 15 bytes.
void SetProcessName(const std::string& name);

// --- signals -----------------------------------------------------------------------------------

// SIGINT and SIGTERM as a pollable descriptor. Blocks both for the calling thread and for threads
// that it starts later, so create it in main() before the first thread. At most one per process.
class SignalWatcher {
 public:
  static Result<SignalWatcher> Create();

  int fd() const { return fd_.get(); }
  // The next signal number, or nothing when none is pending. Never blocks.
  std::optional<int> Take();

 private:
  explicit SignalWatcher(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// --- children ----------------------------------------------------------------------------------

struct SpawnOptions {
  // argv[0] is searched in PATH unless it has a slash. REQUIRES: not empty
  std::vector<std::string> argv;
  // Added to, or replacing, variables of our environment: "NAME=value".
  std::vector<std::string> environment;
  // Borrowed during the call; -1 keeps ours. Standard input is /dev/null unless `stdin_fd` is set.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  // The child leads its own group: a terminal's SIGINT does not reach it, and Kill() reaches all of
  // its descendants that stay in the group.
  bool new_process_group = false;
  // Sent to the child when our calling thread dies; 0: none.
  int parent_death_signal = 0;
};

// A child that is not waited for is killed and reaped when its handle goes. One thread.
class ChildProcess {
 public:
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Polls readable when the child has ended.
  int fd() const { return pidfd_.get(); }
  // The exit code, or 128 + the signal that ended it. kDeadlineExceeded while it runs. Later calls
  // return the same.
  Result<int> Wait(Deadline deadline);
  // To the child's group when it leads one. A child that has ended is not an error.
  void Kill(int signal);

 private:
  friend Result<ChildProcess> SpawnProcess(const SpawnOptions& options);
  ChildProcess(pid_t pid, UniqueFd pidfd, bool leads_group);

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool leads_group_ = false;
  std::optional<int> exit_code_;
};

// An unknown program or a failed exec is an error here, not an exit code of the child. The child
// starts with no signal blocked.
Result<ChildProcess> SpawnProcess(const SpawnOptions& options);

// --- what the host lets us use -----------------------------------------------------------------

// Memory of this process with shared pages divided by their users (smaps_rollup).
Result<uint64_t> ProportionalSetSizeBytes();
// What can still be allocated without swapping: MemAvailable, capped by what the memory cgroups of
// this process (v1 or v2) leave. `root` is put before /proc and /sys, for tests.
Result<uint64_t> AvailableMemoryBytes(const std::string& root = "");
// Cores that this process can keep busy: its affinity mask, capped by the cgroups' CPU quota
// (rounded up). At least 1.
int CoreCount(const std::string& root = "");

}  // namespace expertflow
