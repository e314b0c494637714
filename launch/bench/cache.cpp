#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "common/units.h"
#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_setup.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 3;
constexpr int32_t kPrompts = 4;
constexpr int32_t kPromptTokens = 32;
constexpr int32_t kNewTokens = 96;
constexpr LinkProperties kLink{
    .bytes_per_second = 4'000'000'000, .latency_ns = 10'000, .emulated = true};

struct Arm {
  std::string name;
  BenchEngineOptions options;
  std::unique_ptr<BenchEngine> engine;
  std::vector<double> tokens_per_s, stall_percent;
  WorkerStats before, after;  // around the repetitions
};

std::vector<Arm> MakeArms(const BenchSetup& setup) {
  std::vector<Arm> arms(1);
  arms[0].name = "in place";
  for (const double percent : {15, 30, 50, 100}) {
    for (const bool prefetch : {false, true}) {
      Arm arm;
      arm.name = fmt::format("{:3.0f} % resident, prefetch {}", percent, prefetch ? "on" : "off");
      arm.options.in_place = false;
      arm.options.resident_percent = percent;
      arm.options.prefetch = prefetch;
      arm.options.stride = 1;
      arm.options.link = kLink;
      arms.push_back(std::move(arm));
    }
  }
  for (Arm& arm : arms) {
    arm.options.threads = setup.threads;
    arm.options.kernels = setup.kernels;
  }
  return arms;
}

// One prompt after the other, so that a step is a single token's. All arms get the same.
Result<std::vector<int32_t>> RunPrompts(Arm* arm, int32_t vocab) {
  std::vector<int32_t> tokens;
  const WorkerStats before = arm->engine->engine().stats();
  int64_t ns = 0;
  for (int32_t prompt = 0; prompt < kPrompts; ++prompt) {
    RETURN_IF_ERROR(arm->engine->Start(
        RandomPrompt(kPromptTokens, vocab, static_cast<uint32_t>(prompt)), kNewTokens));
    ASSIGN_OR_RETURN(const int64_t prompt_ns, arm->engine->RunToEnd(&tokens));
    ns += prompt_ns;
  }
  const WorkerStats after = arm->engine->engine().stats();
  arm->tokens_per_s.push_back(static_cast<double>(tokens.size()) /
                              (static_cast<double>(ns) * 1e-9));
  arm->stall_percent.push_back(100.0 * static_cast<double>(after.stall_ns - before.stall_ns) /
                               static_cast<double>(ns));
  return tokens;
}

std::string Counters(const Arm& arm) {
  const WorkerStats& from = arm.before;
  const WorkerStats& to = arm.after;
  const auto uses = static_cast<double>(to.hits + to.late_hits + to.misses - from.hits -
                                        from.late_hits - from.misses);
  const auto share = [&](uint64_t count) { return 100.0 * static_cast<double>(count) / uses; };
  std::string text =
      fmt::format("hit {:.1f} % late {:.1f} % miss {:.1f} %", share(to.hits - from.hits),
                  share(to.late_hits - from.late_hits), share(to.misses - from.misses));
  if (!arm.options.in_place) {
    text += fmt::format("; demand {}, prefetch {}, wasted {}",
                        FormatBytes(to.bytes_demand - from.bytes_demand),
                        FormatBytes(to.bytes_prefetch - from.bytes_prefetch),
                        FormatBytes(to.bytes_wasted - from.bytes_wasted));
    if (arm.options.prefetch && !to.prefetch_enabled) text += "; prefetch switched itself off";
  }
  return text;
}

}  // namespace

Result<BenchReport> BenchCache(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const BenchModel model, BenchModel::Open(path, setup.work_folder));
  const int32_t vocab = model.architecture().shape().vocab;
  std::vector<Arm> arms = MakeArms(setup);

  HostWatch host;
  std::vector<int32_t> expected;
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  for (int32_t repetition = -1; repetition < repetitions; ++repetition) {
    for (Arm& arm : arms) {
      if (repetition < 0) {
        ASSIGN_OR_RETURN(arm.engine, BenchEngine::Create(model, arm.options));
      }
      ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, RunPrompts(&arm, vocab));
      if (expected.empty()) expected = tokens;
      if (tokens != expected) {
        return Internal(fmt::format("{}: other tokens than in place", arm.name));
      }
      arm.after = arm.engine->engine().stats();
      if (repetition < 0) {  // warm-up: the cache fills
        arm.before = arm.after;
        arm.tokens_per_s.clear();
        arm.stall_percent.clear();
      }
    }
  }

  BenchReport report;
  report.bench = "cache";
  report.title = "decode over an expert cache: share of resident experts x prefetch";
  report.machine = host.Describe();
  report.AddSetting("device", arms[0].engine->DeviceSettings());
  report.AddSetting("model", model.name());
  report.AddSetting("link", fmt::format("emulated, {}, {} per copy",
                                        FormatBytesPerSecond(double(kLink.bytes_per_second)),
                                        FormatDurationNs(kLink.latency_ns)));
  report.AddSetting("prompts", fmt::format("{} of {} random tokens, {} new tokens each, one by one",
                                           kPrompts, kPromptTokens, kNewTokens));
  report.AddSetting("tokens", "equal in all arms");
  report.AddSetting("samples", "arms take turns, after one warm-up of each");
  for (const Arm& arm : arms) {
    report.AddRow(arm.name, "tokens/s", arm.tokens_per_s, Counters(arm));
  }
  for (const Arm& arm : arms) {
    if (arm.options.in_place) continue;
    report.AddRow(arm.name + ": stall", "% of time", arm.stall_percent,
                  "compute waited for an expert");
  }
  return report;
}

}  // namespace expertflow
