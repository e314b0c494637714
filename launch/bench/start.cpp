#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "common/clock.h"
#include "common/process.h"
#include "common/unique_fd.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/job_benches.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 10;
constexpr int32_t kWorkers = 2;
constexpr int64_t kTimeoutMs = 60'000;
constexpr double kGoalMs = 1500;

struct Times {
  double first_ms = 0;  // of the text
  double exit_ms = 0;
};

// Runs a program until it ends. Its output goes to a pipe; the first byte counts.
Result<Times> TimeProgram(const std::vector<std::string>& argv) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
  UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  const int64_t begin_ns = NowNs();
  SpawnOptions options;
  options.argv = argv;
  options.stdout_fd = input.get();
  ASSIGN_OR_RETURN(ChildProcess child, SpawnProcess(options));
  input.Reset();
  const Deadline deadline = Deadline::AfterMs(kTimeoutMs);
  Times times;
  while (true) {
    pollfd waiting{output.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, deadline.RemainingMs(static_cast<int>(kTimeoutMs)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return DeadlineExceeded(fmt::format("{}: no output in time", argv[0]));
    std::array<char, 4096> text{};
    const ssize_t bytes = ::read(output.get(), text.data(), text.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    if (times.first_ms == 0) times.first_ms = static_cast<double>(NowNs() - begin_ns) * 1e-6;
  }
  ASSIGN_OR_RETURN(const int exit_code, child.Wait(deadline));
  times.exit_ms = static_cast<double>(NowNs() - begin_ns) * 1e-6;
  if (exit_code != 0) {
    return Internal(fmt::format("{} {} ended with exit code {}", argv[0], argv[1], exit_code));
  }
  return times;
}

}  // namespace

Result<BenchReport> BenchStart(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create(setup.work_folder));
  std::string model = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error) &&
      !std::filesystem::exists(path + "/model.efstore", error)) {
    model = folder.path() + "/packed";
    RETURN_IF_ERROR(TimeProgram({setup.program, "pack", path, "--output", model}).status());
  }

  HostWatch host;
  std::vector<double> first_ms, exit_ms, nothing_ms;
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  for (int32_t repetition = -1; repetition < repetitions; ++repetition) {
    ASSIGN_OR_RETURN(const Times nothing,
                     TimeProgram({"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to",
                                  "none", "-n", fmt::format("{}", kWorkers + 2), "true"}));
    ASSIGN_OR_RETURN(
        const Times times,
        TimeProgram({setup.program, "run", "--model", model, "--workers",
                     fmt::format("{}", kWorkers), "--kernels", setup.kernels, "--prompt",
                     "Once upon a time", "--max-tokens", "8", "--ignore-eos"}));
    if (times.first_ms == 0) return Internal("expertflow run gave no text");
    if (repetition < 0) continue;  // warm-up
    nothing_ms.push_back(nothing.exit_ms);
    first_ms.push_back(times.first_ms);
    exit_ms.push_back(times.exit_ms);
  }

  BenchReport report;
  report.bench = "start";
  report.title = "from the start of `expertflow run` to its first text";
  report.machine = host.Describe();
  report.AddSetting("model", fmt::format("{}, packed", path));
  report.AddSetting("job", fmt::format("coordinator, store and {} workers", kWorkers));
  report.AddSetting("samples", "arms take turns, after one warm-up of each");
  report.AddRow(fmt::format("mpirun of {} programs that do nothing", kWorkers + 2), "ms",
                nothing_ms, "limit");
  report.AddRow("first text", "ms", first_ms);
  report.AddRow("end of the program, 8 tokens", "ms", exit_ms);
  report.AddGoal("start to first token", "ms", first_ms, false, kGoalMs);
  return report;
}

}  // namespace expertflow
