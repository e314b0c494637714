// What the three roles have in common: signals, log, wire-up. Each role's file turns options into
// the role's own and runs it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/process.h"
#include "common/status.h"
#include "launch/options.h"
#include "transport/messages.h"
#include "transport/transport.h"
#include "transport/wireup.h"

namespace expertflow {

// A wired-up process.
struct RoleContext {
  Transport& transport;
  const std::vector<Member>& members;  // this process included
  ProcessId self;
  bool by_mpi = false;  // started by mpirun, so `members` is the whole job as it starts
  SignalWatcher& signals;
};

// "--job", "--job-dir" (or its default).
Result<std::string> JobName(const Options& options);
std::string JobFolderPath(const Options& options);
// "host:port" that only processes of this host can reach.
bool IsLoopback(std::string_view address);
// The job's secret, EXPERTFLOW_JOIN_SECRET; empty when it is not set.
std::string JoinSecret();
// The executable of this process, for replacements.
Result<std::string> ExecutablePath();

// Wires up and runs `run`. Ends the process: 0, 128 + 15 after a signal (kCancelled), 2 for bad
// options, 1 otherwise. Exit handlers are not run: MPI's and UCX's could wait for a peer.
[[noreturn]] void RunRole(const Options& options, ProcessRole role,
                          const std::function<Status(const RoleContext&)>& run);

}  // namespace expertflow
