#include "launch/role.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "launch/commands.h"
#include "launch/environment.h"
#include "launch/job_folder.h"
#include "transport/mpi_wireup.h"
#include "transport/rendezvous.h"
#include "transport/ucx_transport.h"

namespace expertflow {
namespace {

constexpr int64_t kWireUpMs = 60'000;
constexpr auto kLinger = std::chrono::milliseconds(300);

std::string_view RoleName(ProcessRole role) {
  switch (role) {
    case ProcessRole::kCoordinator: return "coordinator";
    case ProcessRole::kStore: return "store";
    case ProcessRole::kWorker: return "worker";
  }
  return "";
}

const char* FirstVariable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return nullptr;
}

// The rank that a launcher of MPI processes gave us; null when we were not started by one.
const char* MpiRank() {
  return FirstVariable({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"});
}

// All processes of the job, as far as we can tell before wire-up, are on this host.
bool OnOneHost(const Options& options) {
  if (FindOption(options.command(), "join") != nullptr && options.Given("join")) {
    return IsLoopback(options.Text("join"));
  }
  if (FindOption(options.command(), "join-listen") != nullptr && options.Given("join-listen")) {
    return IsLoopback(options.Text("join-listen"));
  }
  const char* local = FirstVariable({"OMPI_COMM_WORLD_LOCAL_SIZE"});
  const char* all = FirstVariable({"OMPI_COMM_WORLD_SIZE"});
  if (local == nullptr || all == nullptr) return MpiRank() == nullptr;
  return std::string_view(local) == all;
}

Result<ProcessInfo> DescribeSelf(ProcessRole role, const Transport& transport) {
  ProcessInfo info;
  info.role = role;
  info.host = HostName();
  info.boot_id = ReadBootId();
  info.pid = ::getpid();
  ASSIGN_OR_RETURN(info.pid_start_ticks, ProcessStartTicks(::getpid()));
  info.address = transport.LocalAddress();
  return info;
}

struct WiredUp {
  std::unique_ptr<Transport> transport;
  std::vector<Member> members;
  ProcessId self;
  bool by_mpi = false;
};

Result<WiredUp> WireUpByMpi(ProcessRole role, UcxOptions ucx, Deadline deadline) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiWireUp> wireup, MpiWireUp::Create(deadline));
  WiredUp wired;
  wired.by_mpi = true;
  wired.self = wireup->self();
  ucx.self = wired.self;
  ASSIGN_OR_RETURN(wired.transport, CreateUcxTransport(ucx));
  ASSIGN_OR_RETURN(const ProcessInfo info, DescribeSelf(role, *wired.transport));
  ASSIGN_OR_RETURN(wired.members, wireup->Exchange(info, deadline));
  return wired;
}

Result<WiredUp> WireUpByJoining(ProcessRole role, const std::string& address, const UcxOptions& ucx,
                                Deadline deadline) {
  const std::string secret = JoinSecret();
  if (secret.empty()) {
    return InvalidArgument("--join: the job's secret is missing; set EXPERTFLOW_JOIN_SECRET");
  }
  WiredUp wired;
  ASSIGN_OR_RETURN(wired.transport, CreateUcxTransport(ucx));
  ASSIGN_OR_RETURN(const ProcessInfo info, DescribeSelf(role, *wired.transport));
  RendezvousWireUp wireup(address, secret);
  ASSIGN_OR_RETURN(wired.members, wireup.Exchange(info, deadline));
  wired.self = wireup.self();
  wired.transport->SetSelf(wired.self);
  return wired;
}

// A coordinator that nobody else was started with: all others join.
Result<WiredUp> Alone(ProcessRole role, UcxOptions ucx) {
  WiredUp wired;
  wired.self = ProcessId(0);
  ucx.self = wired.self;
  ASSIGN_OR_RETURN(wired.transport, CreateUcxTransport(ucx));
  ASSIGN_OR_RETURN(ProcessInfo info, DescribeSelf(role, *wired.transport));
  wired.members.push_back({wired.self, std::move(info)});
  return wired;
}

Result<WiredUp> WireUpRole(const Options& options, ProcessRole role) {
  UcxOptions ucx;
  ucx.net_devices = options.Text("net-devices");
  if (ucx.net_devices.empty() && OnOneHost(options)) ucx.net_devices = "lo";
  const Deadline deadline = Deadline::AfterMs(kWireUpMs);
  if (role != ProcessRole::kCoordinator && options.Given("join")) {
    return WireUpByJoining(role, options.Text("join"), ucx, deadline);
  }
  if (MpiRank() != nullptr) return WireUpByMpi(role, ucx, deadline);
  if (role == ProcessRole::kCoordinator) return Alone(role, ucx);
  return InvalidArgument("started neither by mpirun nor with --join HOST:PORT");
}

int ExitCodeOfRole(const Status& status) {
  if (status.ok()) return kExitOk;
  if (status.code() == StatusCode::kCancelled) return kExitSignal + SIGTERM;
  return ExitCodeFor(status);
}

[[noreturn]] void EndProcess(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}

Status RunWiredUp(const Options& options, ProcessRole role, pid_t parent,
                  const std::function<Status(const RoleContext&)>& run) {
  RETURN_IF_ERROR(JobName(options).status());
  const bool by_mpi = MpiRank() != nullptr;
  // Until the others can reach us there is nothing to clean up, and MPI may hang.
  if (by_mpi) RETURN_IF_ERROR(DieWithParent(SIGKILL, parent));
  ASSIGN_OR_RETURN(SignalWatcher signals, SignalWatcher::Create());
  ASSIGN_OR_RETURN(WiredUp wired, WireUpRole(options, role));
  if (by_mpi) RETURN_IF_ERROR(DieWithParent(SIGTERM, parent));
  SetProcessName(role == ProcessRole::kCoordinator
                     ? std::string("ef-coordinator")
                     : fmt::format("ef-{}-{}", RoleName(role), wired.self.value));
  const RoleContext context{.transport = *wired.transport,
                            .members = wired.members,
                            .self = wired.self,
                            .by_mpi = wired.by_mpi,
                            .signals = signals};
  Status status = run(context);
  // mpirun ends its processes with SIGTERM, and kills those that are left as soon as the first has
  // gone: this one has cleaned up, and gives the others the time to do the same.
  const bool interrupted = status.code() == StatusCode::kCancelled || signals.Take().has_value();
  if (wired.by_mpi && interrupted && role != ProcessRole::kCoordinator) {
    std::this_thread::sleep_for(kLinger);
  }
  // Left open: closing could wait for a peer, and the kernel closes it in any case.
  (void)wired.transport.release();
  return status;
}

}  // namespace

Result<std::string> JobName(const Options& options) {
  std::string job = options.Text("job");
  const bool plain = std::all_of(job.begin(), job.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  if (job.empty() || job.size() > 64 || !plain) {
    return InvalidArgument(fmt::format(
        "--job: expected 1 to 64 letters, digits, dots, dashes or underscores, found \"{}\"", job));
  }
  return job;
}

std::string JobFolderPath(const Options& options) {
  const std::string folder = options.Text("job-dir");
  return folder.empty() ? "/tmp/" + options.Text("job") : folder;
}

bool IsLoopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host.starts_with("127.") || host == "[::1]" || host == "::1";
}

std::string JoinSecret() {
  const char* secret = std::getenv(kJoinSecretVariable);
  return secret == nullptr ? "" : secret;
}

Result<std::string> ExecutablePath() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return FromErrno(error.value(), "/proc/self/exe");
  return path.string();
}

void RunRole(const Options& options, ProcessRole role,
             const std::function<Status(const RoleContext&)>& run) {
  const pid_t parent = ::getppid();
  const char* rank = MpiRank();
  InitLog(*ParseLogLevel(options.Text("log-level")),
          rank != nullptr ? fmt::format("{} {}", RoleName(role), rank)
                          : fmt::format("{} (pid {})", RoleName(role), ::getpid()));
  // Standard error may be a pipe of an mpirun that is gone.
  std::signal(SIGPIPE, SIG_IGN);
  const Status status = RunWiredUp(options, role, parent, run);
  if (!status.ok() && status.code() != StatusCode::kCancelled) LogError("{}", status.message());
  EndProcess(ExitCodeOfRole(status));
}

}  // namespace expertflow
