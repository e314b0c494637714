#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/job_benches.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 3;
constexpr int32_t kWorkers = 2;
constexpr unsigned kSettleSeconds = 1;
constexpr unsigned kSeconds = 10;
constexpr double kGoalPercent = 1;

int64_t CpuOf(const std::vector<ProcessUsage>& processes, const std::string& role) {
  int64_t ns = 0;
  for (const ProcessUsage& process : processes) {
    if (role.empty() || process.role == role) ns += process.cpu_ns;
  }
  return ns;
}

}  // namespace

Result<BenchReport> BenchIdle(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  HostWatch host;
  ASSIGN_OR_RETURN(const auto job, StartBenchJob(path, kWorkers, {"--kernels", setup.kernels}));
  ::sleep(kSettleSeconds);
  const std::vector<std::string> roles = {"", "coordinator", "store", "worker"};
  std::vector<std::vector<double>> percent(roles.size());
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  for (int32_t repetition = 0; repetition < repetitions; ++repetition) {
    const std::vector<ProcessUsage> before = UsageOf(job->name());
    const int64_t begin_ns = NowNs();
    ::sleep(kSeconds);
    const std::vector<ProcessUsage> after = UsageOf(job->name());
    const auto wall_ns = static_cast<double>(NowNs() - begin_ns);
    if (before.size() != kWorkers + 2 || after.size() != before.size()) {
      return Internal("a process of the job ended while it was idle");
    }
    for (size_t i = 0; i < roles.size(); ++i) {
      const int64_t cpu_ns = CpuOf(after, roles[i]) - CpuOf(before, roles[i]);
      percent[i].push_back(100.0 * static_cast<double>(cpu_ns) / wall_ns);
    }
  }
  EndBenchJob(*job);

  BenchReport report;
  report.bench = "idle";
  report.title = "CPU time of a job that has nothing to do";
  report.machine = host.Describe();
  report.AddSetting("model", path);
  report.AddSetting(
      "job", fmt::format("coordinator, store and {} workers; mpirun itself not counted", kWorkers));
  report.AddSetting("samples", fmt::format("{} s each", kSeconds));
  report.AddRow("whole job", "% of core", percent[0]);
  for (size_t i = 1; i < roles.size(); ++i) {
    report.AddRow(roles[i] == "worker" ? "workers together" : roles[i], "% of core", percent[i]);
  }
  report.AddGoal("an idle job", "% of core", percent[0], false, kGoalPercent);
  return report;
}

}  // namespace expertflow
