#include "launch/bench/job_benches.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "launch/job_processes.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadyMs = 60'000;

std::string ReadProc(pid_t pid, const char* name) {
  std::ifstream file(fmt::format("/proc/{}/{}", pid, name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The second word of the command line.
std::string RoleOf(pid_t pid) {
  const std::string words = ReadProc(pid, "cmdline");
  const size_t program_end = words.find('\0');
  if (program_end == std::string::npos) return "";
  return words.substr(program_end + 1, words.find('\0', program_end + 1) - program_end - 1);
}

uint64_t ResidentBytes(pid_t pid) {
  std::istringstream lines(ReadProc(pid, "smaps_rollup"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t kilobytes = 0;
    if (words >> name >> kilobytes && name == "Pss:") return kilobytes * 1024;
  }
  return 0;
}

// schedstat counts nanoseconds where stat counts ticks of 10 ms.
int64_t CpuNs(pid_t pid) {
  int64_t total_ns = 0;
  std::error_code error;
  for (fs::directory_iterator task(fmt::format("/proc/{}/task", pid), error), end;
       !error && task != end; task.increment(error)) {
    std::ifstream file(task->path() / "schedstat");
    int64_t ns = 0;
    if (file >> ns) total_ns += ns;
  }
  return total_ns;
}

}  // namespace

Result<std::unique_ptr<Job>> StartBenchJob(const std::string& model, int32_t workers,
                                           std::vector<std::string> arguments) {
  std::error_code error;
  const fs::path absolute = fs::absolute(model, error);
  arguments.insert(arguments.end(), {"--model", error ? model : absolute.string(), "--workers",
                                     fmt::format("{}", workers), "--log-level", "warning"});
  JobSetup setup;
  setup.workers = workers;
  setup.coordinator_arguments = arguments;
  setup.store_arguments = arguments;
  setup.worker_arguments = std::move(arguments);
  ASSIGN_OR_RETURN(std::unique_ptr<Job> job, Job::Start(setup, nullptr));
  RETURN_IF_ERROR(job->WaitUntilReady(Deadline::AfterMs(kReadyMs), {}));
  return job;
}

void EndBenchJob(Job& job) {
  job.Shutdown(Deadline::AfterMs(kShutdownMs));
}

std::vector<ProcessUsage> UsageOf(const std::string& job) {
  std::vector<ProcessUsage> processes;
  for (const pid_t pid : FindJobProcesses(job)) {
    ProcessUsage usage{RoleOf(pid), ResidentBytes(pid), CpuNs(pid)};
    if (!usage.role.empty() && usage.resident_bytes > 0) processes.push_back(std::move(usage));
  }
  return processes;
}

}  // namespace expertflow
