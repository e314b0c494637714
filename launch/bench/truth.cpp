#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/units.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/job_benches.h"
#include "launch/bench/recorded_engine.h"
#include "launch/bench/typical_steps.h"
#include "launch/simulate/machine_probe.h"
#include "launch/simulate/recorded_run.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 9;
constexpr int32_t kPrompts = 4;
constexpr int32_t kPromptTokens = 8;
constexpr int32_t kNewTokens = 64;
constexpr float kTemperature = 1;
constexpr double kResidentPercents[] = {15, 30, 50};
constexpr uint64_t kLinkRates[] = {1'000'000'000, 4'000'000'000, 12'000'000'000};
constexpr int64_t kLinkLatencyNs = 10'000;
constexpr double kGoalPercent = 10;

// One cell: a residency and a link. Every repetition starts with an empty cache, so all do the
// same.
struct Cell {
  double resident_percent = 0;
  LinkProperties link;
  RecordedRun run;  // of the first repetition
  RecordedSettings settings;
  uint64_t digest = 0;
  TypicalSteps steps;

  std::string Name() const {
    return fmt::format("{:.0f} % resident, {}", resident_percent,
                       FormatBytesPerSecond(static_cast<double>(link.bytes_per_second)));
  }
};

Status RunLive(const BenchSetup& setup, const BenchModel& model, Cell* cell) {
  BenchEngineOptions options;
  options.threads = setup.threads;
  options.kernels = setup.kernels;
  options.resident_percent = cell->resident_percent;
  options.link = cell->link;
  ASSIGN_OR_RETURN(const auto recorded, RecordedEngine::Create(model, options));
  for (int32_t prompt = 0; prompt < kPrompts; ++prompt) {
    RETURN_IF_ERROR(recorded->StartRandom(kPromptTokens, static_cast<uint32_t>(prompt), kNewTokens,
                                          kTemperature));
    std::vector<int32_t> ignored;
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t ns, recorded->engine().RunToEnd(&ignored));
  }
  const uint64_t digest = recorded->engine().engine().stats().decision_digest;
  ASSIGN_OR_RETURN(RecordedRun run, recorded->TakeRun());
  cell->steps.Add(run);
  if (cell->run.rows().empty()) {
    ASSIGN_OR_RETURN(cell->settings, recorded->settings());
    cell->run = std::move(run);
    cell->digest = digest;
  } else if (digest != cell->digest) {
    return Internal(cell->Name() + ": the same run has decided otherwise the second time");
  }
  return OkStatus();
}

double PercentOff(double simulated, double live) {
  return 100 * (simulated / live - 1);
}

Status Compare(const Cell& cell, const MeasuredCosts& costs, std::vector<double>* off_most,
               BenchReport* report) {
  ASSIGN_OR_RETURN(const DeviceSimResult simulated,
                   SimulateRecorded(cell.run, cell.settings, costs));
  if (simulated.cache_digest != cell.digest) {
    return Internal(
        fmt::format("{}: the simulation has decided otherwise than the run ({:016x}, "
                    "{:016x})",
                    cell.Name(), simulated.cache_digest, cell.digest));
  }
  const double live_ns = cell.steps.total_ns();
  const double live_stall_ns = cell.steps.stall_ns();
  const auto tokens = static_cast<double>(kPrompts) * kNewTokens;
  const auto simulated_ns = static_cast<double>(simulated.total_ns);
  const auto simulated_stall_ns = static_cast<double>(simulated.stall_ns);
  const double rate_off = PercentOff(live_ns, simulated_ns);
  const double stall_off = PercentOff(simulated_stall_ns, live_stall_ns);
  report->AddRow(cell.Name() + ": live", "tokens/s", {tokens * 1e9 / live_ns},
                 fmt::format("stall {:.1f} ms ({:.1f} % of the time)", live_stall_ns * 1e-6,
                             100 * live_stall_ns / live_ns));
  report->AddRow(cell.Name() + ": simulated", "tokens/s", {tokens * 1e9 / simulated_ns},
                 fmt::format("{:+.1f} %; stall {:.1f} ms, {:+.1f} %; decisions equal, {:016x}",
                             rate_off, simulated_stall_ns * 1e-6, stall_off, cell.digest));
  off_most->push_back(std::max(std::abs(rate_off), std::abs(stall_off)));
  return OkStatus();
}

}  // namespace

Result<BenchReport> BenchTruth(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const BenchModel model, BenchModel::Open(path, setup.work_folder));
  std::vector<Cell> cells;
  for (const double resident : kResidentPercents) {
    for (const uint64_t rate : kLinkRates) {
      Cell& cell = cells.emplace_back();
      cell.resident_percent = resident;
      cell.link = {.bytes_per_second = rate, .latency_ns = kLinkLatencyNs, .emulated = true};
    }
  }
  HostWatch host;
  std::vector<MachineProbe> probes;
  for (const double resident : kResidentPercents) {
    probes.emplace_back(model, MachineProbeOptions{.threads = setup.threads,
                                                   .kernels = setup.kernels,
                                                   .resident_percent = resident,
                                                   .temperature = kTemperature,
                                                   .copy_thread = HasSpareCore(setup.threads)});
  }
  for (int32_t repetition = 0; repetition < setup.Repetitions(kRepetitions); ++repetition) {
    for (size_t c = 0; c < cells.size(); ++c) {
      if (c % std::size(kLinkRates) == 0) {
        RETURN_IF_ERROR(probes[c / std::size(kLinkRates)].Run());
      }
      RETURN_IF_ERROR(RunLive(setup, model, &cells[c]));
    }
  }

  BenchReport report;
  report.bench = "truth";
  report.title = "recorded runs against their simulation, on demand, over an emulated link";
  report.machine = host.Describe();
  report.AddSetting("model", model.name());
  report.AddSetting("threads", std::to_string(setup.threads));
  report.AddSetting("link", DescribeEmulatedLink(kLinkLatencyNs, setup.threads));
  report.AddSetting("text", fmt::format("{} prompts of {} random tokens, {} drawn ones each",
                                        kPrompts, kPromptTokens, kNewTokens));
  report.AddSetting("samples", "arms take turns; of each layer the median over repetitions");
  std::vector<double> off_most;
  for (size_t c = 0; c < cells.size(); ++c) {
    const size_t p = c / std::size(kLinkRates);
    ASSIGN_OR_RETURN(const MeasuredCosts costs, probes[p].Costs());
    if (c % std::size(kLinkRates) == 0) {
      report.AddSetting(fmt::format("probed, {:.0f} %", kResidentPercents[p]),
                        DescribeCosts(costs));
    }
    RETURN_IF_ERROR(Compare(cells[c], costs, &off_most, &report));
  }
  report.AddRow("tokens/s or stall off by", "%", off_most, "absolute, of each cell");
  report.AddGoal("worst of all cells", "%", {*std::max_element(off_most.begin(), off_most.end())},
                 false, kGoalPercent);
  return report;
}

}  // namespace expertflow
