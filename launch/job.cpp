#include "launch/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "common/log.h"
#include "common/mapped_file.h"
#include "common/unique_fd.h"
#include "expert_store/segment.h"
#include "launch/environment.h"
#include "launch/job_processes.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr int kConnectRetryMs = 5;
constexpr int64_t kAttachMs = 5000;
constexpr int kPollSliceMs = 1000;
constexpr size_t kLogLinesShown = 12;
constexpr int64_t kTerminateMs = 3000;
constexpr int64_t kKillMs = 2000;

std::string LogPath(const std::string& folder) {
  return folder + "/log";
}

Result<std::string> OwnExecutable() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (error) return FromErrno(error.value(), "/proc/self/exe");
  return path.string();
}

// Everything stays on this host's loopback, nothing is bound to a core, and the death of a process
// leaves the others alone.
std::vector<std::string> MpirunArguments(const std::string& folder) {
  std::vector<std::string> arguments = {"mpirun"};
  if (::geteuid() == 0) arguments.emplace_back("--allow-run-as-root");
  for (const char* word : {"--enable-recovery", "--oversubscribe", "--bind-to", "none"}) {
    arguments.emplace_back(word);
  }
  const std::array<std::pair<const char*, std::string>, 7> settings = {{
      {"plm", "isolated"},
      {"ras", "^slurm"},
      {"pml", "ob1"},
      {"btl", "self,tcp"},
      {"btl_tcp_if_include", "lo"},
      {"oob_tcp_if_include", "lo"},
      {"orte_tmpdir_base", folder},
  }};
  for (const auto& [name, value] : settings) {
    arguments.emplace_back("--mca");
    arguments.emplace_back(name);
    arguments.push_back(value);
  }
  return arguments;
}

// The roles get their options on the command line: what the user's environment says about options
// is part of that already, and has been checked. An empty variable counts as not set.
std::vector<std::string> RoleEnvironment(const JobSetup& setup) {
  std::vector<std::string> environment;
  for (const std::string& name : OwnVariables()) {
    if (name != kJoinSecretVariable) environment.push_back(name + "=");
  }
  if (std::getenv("UCX_NET_DEVICES") == nullptr && !setup.others_join) {
    environment.emplace_back("UCX_NET_DEVICES=lo");
  }
  return environment;
}

std::vector<std::string> JobCommandLine(const JobSetup& setup, const JobFolder& folder,
                                        const std::string& executable, bool requested) {
  std::vector<std::string> words = MpirunArguments(folder.path);
  const auto add = [&](const char* role, int32_t count, const std::vector<std::string>& arguments) {
    if (words.back() != folder.path) words.emplace_back(":");
    for (std::string word :
         {std::string("-n"), fmt::format("{}", count), executable, std::string(role),
          std::string("--job"), folder.job, std::string("--job-dir"), folder.path,
          std::string("--job-pid"), fmt::format("{}", ::getpid())}) {
      words.push_back(std::move(word));
    }
    words.insert(words.end(), arguments.begin(), arguments.end());
  };
  std::vector<std::string> coordinator = setup.coordinator_arguments;
  if (requested) {
    coordinator.emplace_back("--requested");
    coordinator.push_back(folder.path + "/requested.json");
  }
  add("coordinator", 1, coordinator);
  add("store", 1, setup.store_arguments);
  add("worker", setup.workers, setup.worker_arguments);
  return words;
}

std::string_view SignalName(int signal) {
  return signal == SIGINT ? "SIGINT" : "SIGTERM";
}

Status FromJobState(const JobState& state) {
  const StatusCode code = state.code <= static_cast<uint8_t>(StatusCode::kInternal)
                              ? static_cast<StatusCode>(state.code)
                              : StatusCode::kInternal;
  return Status(code == StatusCode::kOk ? StatusCode::kInternal : code,
                state.message.empty() ? "the job failed" : state.message);
}

}  // namespace

std::string ExplainLog(const std::string& log, size_t lines_max) {
  static constexpr std::array<std::string_view, 8> kNoise = {
      "PMIX ERROR",  "----------", "mpirun has exited",     "mpirun noticed",
      "Primary job", "job to be",  "Open MPI has detected", "rdma_create_event_channel"};
  std::deque<std::string> lines;
  std::istringstream stream(log);
  for (std::string line; std::getline(stream, line);) {
    const bool noise = line.find_first_not_of(" \r\t") == std::string::npos ||
                       std::any_of(kNoise.begin(), kNoise.end(), [&](std::string_view text) {
                         return line.find(text) != std::string::npos;
                       });
    if (noise) continue;
    lines.push_back(std::move(line));
    if (lines.size() > lines_max) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

void SweepJobRemains() {
  SweepStale();
  SweepJobFolders(/*dry_run=*/false);
}

Result<std::unique_ptr<Job>> Job::Start(const JobSetup& setup, SignalWatcher* signals) {
  SweepJobRemains();
  ASSIGN_OR_RETURN(const std::string executable, OwnExecutable());

  std::unique_ptr<Job> job(new Job());
  job->signals_ = signals;
  ASSIGN_OR_RETURN(job->folder_, CreateJobFolder());
  const std::string& folder = job->folder_.path;
  if (!setup.requested_json.empty()) {
    RETURN_IF_ERROR(WriteFileAtomically(folder + "/requested.json", setup.requested_json));
  }
  UniqueFd log(::open(LogPath(folder).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return FromErrno(errno, LogPath(folder));

  SpawnOptions spawn;
  spawn.argv = JobCommandLine(setup, job->folder_, executable, !setup.requested_json.empty());
  spawn.environment = RoleEnvironment(setup);
  spawn.stdout_fd = log.get();
  spawn.stderr_fd = log.get();
  spawn.new_process_group = true;
  spawn.parent_death_signal = SIGTERM;
  Result<ChildProcess> mpirun = SpawnProcess(spawn);
  if (!mpirun.ok()) {
    return mpirun.status().WithContext("cannot start the job (launch/install-dependencies)");
  }
  job->mpirun_.emplace(std::move(*mpirun));
  return job;
}

Result<std::unique_ptr<Job>> Job::Attach(const std::string& name, const std::string& folder,
                                         SignalWatcher* signals) {
  std::unique_ptr<Job> job(new Job());
  job->signals_ = signals;
  ASSIGN_OR_RETURN(JobClient client, JobClient::Find(name, folder, Deadline::AfterMs(kAttachMs)));
  job->client_.emplace(std::move(client));
  return job;
}

Job::~Job() {
  EndProcesses(Deadline::AfterMs(kTerminateMs));
  if (folder_.job.empty()) return;
  // The store removes it; this is for one that was killed.
  ::shm_unlink(("/" + SegmentName(folder_.job)).c_str());
  RemoveJobFolder(folder_.path);
}

bool Job::MpirunEnded(Deadline deadline) {
  return mpirun_ && mpirun_->Wait(deadline).ok();
}

Status Job::Died(const std::string& what) {
  if (!mpirun_) return Unavailable(what);
  std::string log;
  if (Result<std::string> text = ReadFileToString(LogPath(folder_.path), size_t{64} << 20);
      text.ok()) {
    log = ExplainLog(*text, kLogLinesShown);
  }
  return Unavailable(what + (log.empty() ? "" : "; its last log lines:" + log));
}

Status Job::WaitForEvent(Deadline deadline, int wake_ms) {
  std::array<pollfd, 3> waiting = {{{mpirun_ ? mpirun_->fd() : -1, POLLIN, 0},
                                    {signals_ != nullptr ? signals_->fd() : -1, POLLIN, 0},
                                    {client_ ? client_->fd() : -1, POLLIN, 0}}};
  ::poll(waiting.data(), waiting.size(), deadline.RemainingMs(wake_ms));
  if (signals_ != nullptr) {
    if (const std::optional<int> signal = signals_->Take()) {
      signal_ = *signal;
      return Cancelled(fmt::format("ended by {}", SignalName(signal_)));
    }
  }
  if (client_) {
    RETURN_IF_ERROR(client_->Receive());
  }
  return OkStatus();
}

Status Job::Connect(Deadline deadline) {
  const std::string path = ControlSocketPath(folder_.path);
  while (true) {
    Result<JobClient> client = JobClient::Connect(path, deadline);
    if (client.ok()) {
      client_.emplace(std::move(*client));
      return OkStatus();
    }
    RETURN_IF_ERROR(WaitForEvent(deadline, kConnectRetryMs));
    if (const Result<int> exited = mpirun_->Wait(Deadline::AfterNs(0)); exited.ok()) {
      return Died(fmt::format("mpirun ended with code {} before the job was up", *exited));
    }
    if (deadline.Passed()) return Died("the coordinator did not come up in time");
  }
}

Result<Message> Job::Next(Deadline deadline) {
  while (true) {
    if (std::optional<Message> message = client_->Take()) return std::move(*message);
    if (client_->closed()) {
      return Died(MpirunEnded(Deadline::AfterMs(200)) ? "the job ended: mpirun is gone"
                                                      : "the job's coordinator is gone");
    }
    // With mpirun gone the processes end; what they have sent is taken first.
    if (MpirunEnded(Deadline::AfterNs(0))) {
      RETURN_IF_ERROR(client_->Receive());
      if (std::optional<Message> message = client_->Take()) return std::move(*message);
      return Died("the job ended: mpirun is gone");
    }
    if (deadline.Passed()) return DeadlineExceeded("no message from the coordinator in time");
    RETURN_IF_ERROR(WaitForEvent(deadline, kPollSliceMs));
  }
}

Status Job::PollOnce(Deadline deadline, std::span<pollfd> also, std::vector<Message>* messages) {
  if (!client_) {
    Result<JobClient> client =
        JobClient::Connect(ControlSocketPath(folder_.path), Deadline::AtNs(0));
    if (client.ok()) client_.emplace(std::move(*client));
  }
  std::vector<pollfd> waiting(also.begin(), also.end());
  waiting.push_back({mpirun_ ? mpirun_->fd() : -1, POLLIN, 0});
  if (client_) {
    const auto events = static_cast<int16_t>(POLLIN | (client_->wants_write() ? POLLOUT : 0));
    waiting.push_back({client_->fd(), events, 0});
  }
  ::poll(waiting.data(), waiting.size(),
         deadline.RemainingMs(client_ ? kPollSliceMs : kConnectRetryMs));
  std::copy_n(waiting.begin(), also.size(), also.begin());

  const bool ended = MpirunEnded(Deadline::AfterNs(0));
  if (client_ && !client_->closed()) {
    if (client_->wants_write()) RETURN_IF_ERROR(client_->Flush());
    RETURN_IF_ERROR(client_->Receive());
  }
  bool told = false;
  while (std::optional<Message> message = client_ ? client_->Take() : std::nullopt) {
    messages->push_back(std::move(*message));
    told = true;
  }
  if (told) return OkStatus();
  if (ended)
    return Died(client_ ? "the job ended: mpirun is gone" : "mpirun ended before the job was up");
  if (client_ && client_->closed()) return Died("the job's coordinator is gone");
  return OkStatus();
}

Status Job::WaitUntilReady(Deadline deadline,
                           const std::function<void(const JobState&)>& progress) {
  if (!client_) RETURN_IF_ERROR(Connect(deadline));
  while (true) {
    Result<Message> message = Next(deadline);
    if (!message.ok()) {
      if (message.status().code() != StatusCode::kDeadlineExceeded) return message.status();
      return Died("the job was not ready in time (--start-timeout)");
    }
    const JobState* state = std::get_if<JobState>(&*message);
    if (state == nullptr) continue;
    if (progress) progress(*state);
    if (state->phase == JobPhase::kReady) return OkStatus();
    if (state->phase == JobPhase::kFailed) return FromJobState(*state);
  }
}

void Job::Shutdown(Deadline deadline) {
  if (client_ && !client_->closed()) {
    (void)client_->RequestShutdown(deadline);
    while (mpirun_ && !client_->closed() && !deadline.Passed()) {
      if (mpirun_->Wait(Deadline::AfterNs(0)).ok()) break;
      std::array<pollfd, 2> waiting = {{{mpirun_->fd(), POLLIN, 0}, {client_->fd(), POLLIN, 0}}};
      ::poll(waiting.data(), waiting.size(), deadline.RemainingMs(kPollSliceMs));
      if (!client_->Receive().ok()) break;
      while (client_->Take()) {
      }
    }
  }
  if (mpirun_) (void)mpirun_->Wait(deadline);
  EndProcesses(Deadline::AfterMs(kTerminateMs));
}

void Job::EndProcesses(Deadline deadline) {
  if (!mpirun_) return;
  if (!mpirun_->Wait(Deadline::AfterNs(0)).ok()) {
    mpirun_->Kill(SIGTERM);
    if (!mpirun_->Wait(deadline).ok()) {
      LogWarning("mpirun does not end; killing the job");
      mpirun_->Kill(SIGKILL);
    }
  }
  // Replacements are not mpirun's children, and a process that hangs ignores SIGTERM.
  EndJobProcesses(folder_.job, Deadline::AfterMs(kKillMs));
  (void)mpirun_->Wait(Deadline::AfterMs(kKillMs));
  mpirun_.reset();
  client_.reset();
}

}  // namespace expertflow
