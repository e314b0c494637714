#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/units.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/job_benches.h"
#include "launch/bench/recorded_engine.h"
#include "launch/bench/typical_steps.h"
#include "launch/policy_tables.h"
#include "launch/simulate/recorded_run.h"
#include "predictor/fitted_to.h"
#include "predictor/hybrid_file.h"
#include "predictor/next_use_file.h"
#include "worker/routing_recorder.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 5;
constexpr int32_t kPrompts = 6;
constexpr int32_t kPromptTokens = 8;
constexpr int32_t kNewTokens = 128;
constexpr int64_t kLinkLatencyNs = 10'000;
constexpr double kResidentPercents[] = {10, 20, 30, 40, 50, 60};
constexpr uint64_t kLinkRates[] = {1'000'000'000, 4'000'000'000, 12'000'000'000};
constexpr double kNoisePercent = 3;
constexpr double kStallSavedPercent = 70;

struct ArmSpec {
  const char* name;
  CacheRanking ranking = CacheRanking::kGuarded;
  bool prefetch = true;
  int32_t stride = 0;  // 0: as measured
  bool fitted = true;  // predictor and forecaster, where the model has them
};
constexpr ArmSpec kArms[] = {
    {"LRU on demand", CacheRanking::kRecency, false, 0, false},
    {"LRU, pre-gate 1", CacheRanking::kRecency, true, 1, false},
    {"ours", CacheRanking::kGuarded, true, 0, true},
    {"ours on demand", CacheRanking::kGuarded, false, 0, true},
    {"ours, stride 1", CacheRanking::kGuarded, true, 1, true},
    {"ours, stride 2", CacheRanking::kGuarded, true, 2, true},
    {"ours, stride 4", CacheRanking::kGuarded, true, 4, true},
};
constexpr size_t kLru = 0;
constexpr size_t kOurs = 2;

struct Arm {
  TypicalSteps steps;
  WorkerStats stats;
};

struct Cell {
  double resident_percent = 0;
  uint64_t link_rate = 0;
  std::vector<Arm> arms;
  RecordedRun run;
  RecordedSettings settings;
};

struct Fitted {
  std::shared_ptr<const NextUseModel> forecaster;
  std::shared_ptr<const HybridModel> predictor;
};

Result<Fitted> LoadFitted(const std::string& folder, const BenchModel& model) {
  const TraceShape shape = RecordedShape(model.store(), model.architecture().shape(), false, "{}");
  const LanguageModelIdentity identity = ModelIdentity(shape);
  Fitted fitted;
  std::error_code error;
  const std::string predictor = folder + "/" + kPredictorFileName;
  if (std::filesystem::exists(predictor, error)) {
    ASSIGN_OR_RETURN(HybridFile file, ReadHybrid(predictor));
    RETURN_IF_ERROR(
        CheckFittedTo(file.identity, file.model.experts, identity, shape.experts, predictor));
    fitted.predictor = std::make_shared<const HybridModel>(std::move(file.model));
  }
  const std::string forecaster = folder + "/" + kForecasterFileName;
  if (std::filesystem::exists(forecaster, error)) {
    ASSIGN_OR_RETURN(NextUseFile file, ReadNextUse(forecaster));
    RETURN_IF_ERROR(
        CheckFittedTo(file.identity, file.model.experts, identity, shape.experts, forecaster));
    fitted.forecaster = std::make_shared<const NextUseModel>(std::move(file.model));
  }
  return fitted;
}

// One arm of a cell, from an empty cache. The text is drawn by the model itself, with seeds.
Result<std::vector<int32_t>> RunArm(const BenchSetup& setup, const BenchModel& model,
                                    const Fitted& fitted, const ArmSpec& spec, Cell* cell,
                                    Arm* arm) {
  BenchEngineOptions options;
  options.threads = setup.threads;
  options.kernels = setup.kernels;
  options.resident_percent = cell->resident_percent;
  options.link = {
      .bytes_per_second = cell->link_rate, .latency_ns = kLinkLatencyNs, .emulated = true};
  options.cache_ranking = spec.ranking;
  options.prefetch = spec.prefetch;
  options.stride = spec.stride;
  if (spec.fitted) {
    options.forecaster = fitted.forecaster;
    options.predictor = fitted.predictor;
  }
  ASSIGN_OR_RETURN(const auto recorded, RecordedEngine::Create(model, options));
  std::vector<int32_t> tokens;
  for (int32_t prompt = 0; prompt < kPrompts; ++prompt) {
    RETURN_IF_ERROR(
        recorded->StartRandom(kPromptTokens, static_cast<uint32_t>(prompt), kNewTokens, 1));
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t ns, recorded->engine().RunToEnd(&tokens));
  }
  ASSIGN_OR_RETURN(RecordedRun run, recorded->TakeRun());
  arm->steps.Add(run);
  arm->stats = recorded->engine().engine().stats();
  if (cell->run.rows().empty()) {
    ASSIGN_OR_RETURN(cell->settings, recorded->settings());
    cell->run = std::move(run);
  }
  return tokens;
}

double TokensPerSecond(const Arm& arm) {
  return double{kPrompts} * kNewTokens * 1e9 / arm.steps.total_ns();
}

std::string Counters(const Arm& arm) {
  const WorkerStats& s = arm.stats;
  const auto uses = static_cast<double>(s.hits + s.late_hits + s.misses);
  const auto share = [&](uint64_t count) { return 100.0 * static_cast<double>(count) / uses; };
  const auto per_token = [](uint64_t bytes) {
    return FormatBytes(bytes / static_cast<uint64_t>(kPrompts * kNewTokens));
  };
  std::string text = fmt::format(
      "stall {:.1f} ms ({:.1f} %); hit {:.1f} late {:.1f} miss {:.1f} %; a token: {}, wasted {}",
      arm.steps.stall_ns() * 1e-6, 100 * arm.steps.stall_ns() / arm.steps.total_ns(), share(s.hits),
      share(s.late_hits), share(s.misses), per_token(s.bytes_demand + s.bytes_prefetch),
      per_token(s.bytes_wasted));
  if (s.prefetch_predictions > 0) text += fmt::format("; stride {}", s.stride);
  if (s.predictor_on) text += ", predictor";
  if (s.forecast_on) text += ", forecast";
  if (s.prefetch_predictions > 0 && !s.prefetch_enabled) text += ", prefetch off by itself";
  return text;
}

// The stall of the least bytes that any cache of this size moves, were they copied while compute
// has nothing to wait for.
Result<double> FloorStallNs(const Cell& cell) {
  RecordedSettings settings = cell.settings;
  settings.ranks = CacheRanks::kOracle;
  ASSIGN_OR_RETURN(const DeviceSimResult best, SimulateRecorded(cell.run, settings, {}));
  const TypicalSteps& lru = cell.arms[kLru].steps;
  const double copy_ns =
      static_cast<double>(best.bytes_demand) * 1e9 / static_cast<double>(cell.link_rate);
  return std::max(0.0, copy_ns - (lru.total_ns() - lru.stall_ns()));
}

std::string NameOf(const Cell& cell) {
  return fmt::format("{:.0f} %, {}", cell.resident_percent,
                     FormatBytesPerSecond(static_cast<double>(cell.link_rate)));
}

struct Verdict {
  std::vector<double> of_best;      // ours, percent of the best arm
  std::vector<double> stall_saved;  // percent, of cells whose floor allows the goal
};

Status Describe(const Cell& cell, Verdict* verdict, BenchReport* report) {
  double best = 0;
  for (size_t a = 0; a < std::size(kArms); ++a) {
    const Arm& arm = cell.arms[a];
    if (a != kOurs) best = std::max(best, TokensPerSecond(arm));
    report->AddRow(fmt::format("{}: {}", NameOf(cell), kArms[a].name), "tokens/s",
                   {TokensPerSecond(arm)}, Counters(arm));
  }
  verdict->of_best.push_back(100 * TokensPerSecond(cell.arms[kOurs]) / best);
  const double lru_ns = cell.arms[kLru].steps.stall_ns();
  ASSIGN_OR_RETURN(const double floor_ns, FloorStallNs(cell));
  const double saved = 100 * (1 - cell.arms[kOurs].steps.stall_ns() / lru_ns);
  const bool allowed = floor_ns <= (1 - kStallSavedPercent / 100) * lru_ns;
  if (allowed) verdict->stall_saved.push_back(saved);
  report->AddRow(NameOf(cell) + ": stall saved by ours", "%", {saved},
                 fmt::format("of LRU on demand; byte floor {:.1f} ms{}; ours {:.1f} % of the best",
                             floor_ns * 1e-6, allowed ? "" : ", does not allow the goal",
                             verdict->of_best.back()));
  return OkStatus();
}

}  // namespace

Result<BenchReport> BenchPolicies(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const BenchModel model, BenchModel::Open(path, setup.work_folder));
  ASSIGN_OR_RETURN(const Fitted fitted, LoadFitted(path, model));
  std::vector<Cell> cells;
  for (const uint64_t rate : kLinkRates) {
    for (const double resident : kResidentPercents) {
      Cell& cell = cells.emplace_back();
      cell.resident_percent = resident;
      cell.link_rate = rate;
      cell.arms.resize(std::size(kArms));
    }
  }
  HostWatch host;
  std::vector<int32_t> expected;
  for (int32_t repetition = 0; repetition < setup.Repetitions(kRepetitions); ++repetition) {
    for (Cell& cell : cells) {
      for (size_t i = 0; i < std::size(kArms); ++i) {
        // Each goes first in turn.
        const size_t a = (i + static_cast<size_t>(repetition)) % std::size(kArms);
        ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                         RunArm(setup, model, fitted, kArms[a], &cell, &cell.arms[a]));
        if (expected.empty()) expected = tokens;
        if (tokens != expected) {
          return Internal(
              fmt::format("{}, {}: other tokens than the first arm", NameOf(cell), kArms[a].name));
        }
      }
    }
  }

  BenchReport report;
  report.bench = "policies";
  report.title = "cache, prefetch and stride, live, over an emulated link";
  report.machine = host.Describe();
  report.AddSetting("model", model.name());
  report.AddSetting("threads", std::to_string(setup.threads));
  report.AddSetting("fitted", fmt::format("predictor {}, forecaster {}",
                                          fitted.predictor != nullptr ? "yes" : "none",
                                          fitted.forecaster != nullptr ? "yes" : "none"));
  report.AddSetting("link", DescribeEmulatedLink(kLinkLatencyNs, setup.threads));
  report.AddSetting("text",
                    fmt::format("{} prompts of {} random tokens, one by one, {} drawn ones each; "
                                "the same in all arms",
                                kPrompts, kPromptTokens, kNewTokens));
  report.AddSetting("samples", fmt::format("arms take turns, {} each from an empty cache; of each "
                                           "layer the median",
                                           setup.Repetitions(kRepetitions)));
  Verdict verdict;
  for (const Cell& cell : cells) RETURN_IF_ERROR(Describe(cell, &verdict, &report));
  report.AddRow("ours, of the best other arm", "%", verdict.of_best, "by cell");
  report.AddGoal("ours, of the best other arm, worst cell", "%",
                 {*std::min_element(verdict.of_best.begin(), verdict.of_best.end())}, true,
                 100 - kNoisePercent);
  if (!verdict.stall_saved.empty()) {
    report.AddRow("stall saved, where the floor allows it", "%", verdict.stall_saved, "by cell");
    report.AddGoal("stall saved, least of the cells that allow it", "%",
                   {*std::min_element(verdict.stall_saved.begin(), verdict.stall_saved.end())},
                   true, kStallSavedPercent);
  }
  return report;
}

}  // namespace expertflow
