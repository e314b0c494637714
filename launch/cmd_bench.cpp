#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "common/process.h"
#include "launch/bench/bench_setup.h"
#include "launch/bench/job_benches.h"
#include "launch/commands.h"

namespace expertflow {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kThreadsDefault = 2;

struct Bench {
  std::string_view name;
  Result<BenchReport> (*run)(const BenchSetup&);
};
constexpr std::array<Bench, 8> kBenches = {{{"decode", BenchDecode},
                                            {"prefill", BenchPrefill},
                                            {"copies", BenchCopies},
                                            {"cache", BenchCache},
                                            {"overhead", BenchOverhead},
                                            {"memory", BenchMemory},
                                            {"start", BenchStart},
                                            {"idle", BenchIdle}}};

// models/tiny-moe of the source tree that this program was built in, or of the current folder.
std::string BundledModel(const fs::path& program) {
  std::error_code error;
  const fs::path model = fs::path("models") / "tiny-moe";
  for (fs::path folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (fs::exists(folder / model / "config.json", error)) return (folder / model).string();
  }
  return model.string();
}

BenchSetup SetupFrom(const Options& options) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  BenchSetup setup;
  setup.model = options.Text("model");
  setup.work_folder = options.Text("work-folder");
  setup.bundled_model = BundledModel(program);
  setup.kernels = options.Text("kernels");
  setup.threads = static_cast<int32_t>(options.Integer("threads"));
  if (setup.threads == 0) setup.threads = std::min(kThreadsDefault, CoreCount());
  setup.repetitions = static_cast<int32_t>(options.Integer("repetitions"));
  setup.program = program.string();
  return setup;
}

}  // namespace

int BenchCommand(const Options& options) {
  const std::string name = options.Text("benchmark");
  const auto* bench = std::find_if(kBenches.begin(), kBenches.end(),
                                   [&](const Bench& each) { return each.name == name; });
  if (bench == kBenches.end()) {
    return Fail(options, InvalidArgument(fmt::format("unknown benchmark {}", name)));
  }
  const Result<BenchReport> report = bench->run(SetupFrom(options));
  if (!report.ok()) return Fail(options, report.status());
  fmt::print("{}", report->ToText());
  if (const Status json = WriteJsonOption(options, report->ToJson()); !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow
