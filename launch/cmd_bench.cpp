#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/process.h"
#include "common/unique_fd.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_setup.h"
#include "launch/bench/job_benches.h"
#include "launch/bundled_model.h"
#include "launch/commands.h"
#include "launch/load/arrival_options.h"
#include "launch/load/batching_bench.h"
#include "launch/load/layouts_bench.h"
#include "launch/predictor/predictor_bench.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kThreadsDefault = 2;
constexpr std::string_view kBatching = "batching";  // these take a load
constexpr std::string_view kLayouts = "layouts";

struct Bench {
  std::string_view name;
  Result<BenchReport> (*run)(const BenchSetup&);
};
constexpr std::array<Bench, 14> kBenches = {{{"decode", BenchDecode},
                                             {"prefill", BenchPrefill},
                                             {"copies", BenchCopies},
                                             {"load", BenchLoad},
                                             {"cache", BenchCache},
                                             {"record", BenchRecord},
                                             {"truth", BenchTruth},
                                             {"policies", BenchPolicies},
                                             {"stride", BenchStride},
                                             {"simulator", BenchSimulator},
                                             {"overhead", BenchOverhead},
                                             {"memory", BenchMemory},
                                             {"start", BenchStart},
                                             {"idle", BenchIdle}}};

// Ends the program on SIGINT or SIGTERM, and removes the folder with the temporary models first. A
// job that runs ends by itself when this process does.
class CleanEnd {
 public:
  static Result<std::unique_ptr<CleanEnd>> Create(std::string folder) {
    ASSIGN_OR_RETURN(SignalWatcher signals, SignalWatcher::Create());
    UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
    if (!stop.valid()) return FromErrno(errno, "eventfd");
    return std::unique_ptr<CleanEnd>(
        new CleanEnd(std::move(signals), std::move(stop), std::move(folder)));
  }
  ~CleanEnd() {
    const uint64_t one = 1;
    if (::write(stop_.get(), &one, sizeof(one)) == sizeof(one)) watcher_.join();
  }

 private:
  CleanEnd(SignalWatcher signals, UniqueFd stop, std::string folder)
      : signals_(std::move(signals)),
        stop_(std::move(stop)),
        folder_(std::move(folder)),
        watcher_([this] { Watch(); }) {}

  void Watch() {
    while (true) {
      std::array<pollfd, 2> waiting = {{{signals_.fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
      if (::poll(waiting.data(), waiting.size(), -1) < 0) continue;
      if (const std::optional<int> signal = signals_.Take()) End(*signal);
      if (waiting[1].revents != 0) return;
    }
  }
  // The benchmark may still be writing: a file that appears in a folder being removed keeps it.
  [[noreturn]] void End(int signal) const {
    constexpr int kAttempts = 20;
    std::error_code error;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      fs::remove_all(folder_, error);
      if (!fs::exists(folder_, error)) break;
    }
    ::_exit(kExitSignal + signal);
  }

  SignalWatcher signals_;
  UniqueFd stop_;
  const std::string folder_;
  std::thread watcher_;
};

BenchSetup SetupFrom(const Options& options, const std::string& work_folder) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  BenchSetup setup;
  setup.model = options.Text("model");
  setup.work_folder = work_folder;
  setup.bundled_model = BundledModel();
  setup.kernels = options.Text("kernels");
  setup.threads = static_cast<int32_t>(options.Integer("threads"));
  if (setup.threads == 0) setup.threads = std::min(kThreadsDefault, CoreCount());
  setup.repetitions = static_cast<int32_t>(options.Integer("repetitions"));
  setup.program = program.string();
  return setup;
}

Result<BenchReport> RunWithLoad(std::string_view name, const Options& options,
                                const BenchSetup& setup) {
  ASSIGN_OR_RETURN(const std::vector<Arrival> arrivals, ArrivalsFrom(options));
  if (name == kLayouts) return BenchLayouts(arrivals);
  return BenchBatching(setup, arrivals, ServiceLevelFrom(options));
}

}  // namespace

int BenchCommand(const Options& options) {
  const std::string name = options.Text("benchmark");
  if (name == "predictor") return BenchPredictorCommand(options);
  if (name == "serve") return BenchServeCommand(options);
  const auto* bench = std::find_if(kBenches.begin(), kBenches.end(),
                                   [&](const Bench& each) { return each.name == name; });
  const bool with_load = name == kBatching || name == kLayouts;
  if (bench == kBenches.end() && !with_load) {
    return Fail(options, InvalidArgument(fmt::format("unknown benchmark {}", name)));
  }
  const Result<TemporaryFolder> folder = TemporaryFolder::Create(options.Text("work-folder"));
  if (!folder.ok()) return Fail(options, folder.status());
  const Result<std::unique_ptr<CleanEnd>> clean_end = CleanEnd::Create(folder->path());
  if (!clean_end.ok()) return Fail(options, clean_end.status());
  const BenchSetup setup = SetupFrom(options, folder->path());
  const Result<BenchReport> report =
      with_load ? RunWithLoad(name, options, setup) : bench->run(setup);
  if (!report.ok()) return Fail(options, report.status());
  fmt::print("{}", report->ToText());
  if (const Status json = WriteJsonOption(options, report->ToJson()); !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow
