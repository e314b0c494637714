#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "launch/bench/bench_host.h"
#include "launch/bench/job_benches.h"
#include "sim/stride_phases.h"

namespace expertflow {
namespace {

// A phase may stall this much more than with the best fixed stride of the phase, or this share of
// the time where there is hardly any stall.
constexpr double kMoreThanBest = 1.1;
constexpr double kMoreOfTime = 0.01;
constexpr double kSavedGoal = 37;  // percent, of the worst fixed stride: the paper's figure

struct FixedStrides {
  double best[StridePhases::kPhases];  // share of the time, of the best stride of the phase
  int64_t worst_stall_ns = 0;          // over all phases, of the worst stride
  int32_t worst = 0;
};

Result<FixedStrides> RunFixed(const StridePhases& phases, const PrefetchPlannerOptions& prefetch) {
  FixedStrides fixed;
  std::fill_n(fixed.best, StridePhases::kPhases, 1.0);
  for (const int32_t stride : StridePhases::FixedStrides()) {
    ASSIGN_OR_RETURN(const DeviceSimResult result,
                     phases.Run(std::make_unique<FixedStride>(stride), prefetch));
    for (size_t phase = 0; phase < StridePhases::kPhases; ++phase) {
      fixed.best[phase] = std::min(fixed.best[phase], StallShare(result, phase));
    }
    if (result.stall_ns <= fixed.worst_stall_ns) continue;
    fixed.worst_stall_ns = result.stall_ns;
    fixed.worst = stride;
  }
  return fixed;
}

double SavedPercent(const DeviceSimResult& result, const FixedStrides& fixed) {
  return 100 - 100 * static_cast<double>(result.stall_ns) /
                   static_cast<double>(std::max<int64_t>(fixed.worst_stall_ns, 1));
}

}  // namespace

Result<BenchReport> BenchStride(const BenchSetup&) {
  BenchReport report;
  report.bench = "stride";
  report.title =
      "the dynamic stride beside fixed ones, simulated, while link, batch or prompts change";
  HostWatch host;
  PrefetchPlannerOptions trusting;
  trusting.distance_step_ppm = 0;
  std::vector<double> of_allowed;
  std::vector<double> saved;
  std::vector<double> saved_of_trusting;
  for (const StridePhasesSetting& setting : StridePhases::Settings()) {
    const StridePhases phases(setting);
    ASSIGN_OR_RETURN(const DeviceSimResult dynamic, phases.RunDynamic());
    ASSIGN_OR_RETURN(const FixedStrides fixed, RunFixed(phases, {}));
    ASSIGN_OR_RETURN(const FixedStrides fixed_trusting, RunFixed(phases, trusting));
    std::vector<double> stall;
    std::vector<double> best;
    std::vector<double> moves;
    for (size_t phase = 0; phase < StridePhases::kPhases; ++phase) {
      stall.push_back(100 * StallShare(dynamic, phase));
      best.push_back(100 * fixed.best[phase]);
      moves.push_back(static_cast<double>(LateMoves(dynamic, phase)));
      of_allowed.push_back(
          100 * StallShare(dynamic, phase) /
          std::max(fixed.best[phase] * kMoreThanBest, fixed.best[phase] + kMoreOfTime));
    }
    saved.push_back(SavedPercent(dynamic, fixed));
    saved_of_trusting.push_back(SavedPercent(dynamic, fixed_trusting));
    const std::string name = setting.Description();
    report.AddRow(name + ": stall", "% of time", stall, "a sample for each phase");
    report.AddRow("  best fixed stride of the phase", "% of time", best);
    report.AddRow("  moves after 32 steps", "", moves);
    report.AddRow("  saved of the worst fixed stride", "% of stall", {saved.back()},
                  fmt::format("stride {}", fixed.worst));
    report.AddRow("  where that trusts far predictions as near ones", "% of stall",
                  {saved_of_trusting.back()}, fmt::format("stride {}", fixed_trusting.worst));
  }
  report.AddRow("all phases: stall of what is allowed", "%", of_allowed);
  report.AddRow("all settings: saved of the worst", "% of stall", saved);
  report.AddRow("  where that trusts far predictions as near ones", "% of stall",
                saved_of_trusting);
  report.AddGoal("stall of the most that is allowed, worst phase", "%",
                 {*std::max_element(of_allowed.begin(), of_allowed.end())}, false, 100);
  report.AddGoal("saved of the worst fixed stride, median", "% of stall", saved, true, kSavedGoal);
  report.AddGoal("saved where that trusts far predictions as near ones, median", "% of stall",
                 saved_of_trusting, true, kSavedGoal);
  report.machine = host.Describe();
  report.AddSetting("device",
                    "simulated: 24 layers of 60 experts of 4 MB, top-4, drawn routing, three "
                    "phases of 120 steps; link changes: half, then twice the rate");
  report.AddSetting("allowed",
                    "1.1 of the best fixed stride of the phase, or 1 % of the time more");
  return report;
}

}  // namespace expertflow
