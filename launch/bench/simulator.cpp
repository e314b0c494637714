#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/cpu_time.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/job_benches.h"
#include "sim/arms.h"
#include "sim/measured_times.h"
#include "sim/synthetic_routing.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 5;
// The shape of DeepSeek-V2-Lite.
constexpr int32_t kLayers = 26;
constexpr int32_t kExperts = 64;
constexpr int32_t kTopK = 6;
constexpr uint64_t kExpertBytes = 17'301'504;
constexpr int32_t kSequences = 4;
constexpr int32_t kTokens = 1024;
constexpr double kResident = 0.5;
constexpr double kGoalMillions = 2;

constexpr MeasuredCosts kCosts = {
    .layer = 60'000, .experts = 10'000, .expert = 25'000, .step_end = 300'000};

}  // namespace

Result<BenchReport> BenchSimulator(const BenchSetup& setup) {
  SyntheticRouting synthetic;
  synthetic.experts.assign(kLayers, kExperts);
  synthetic.top_k = kTopK;
  synthetic.expert_bytes = kExpertBytes;
  synthetic.sequences = kSequences;
  synthetic.tokens = kTokens;
  const RoutingTrace trace = SynthesizeRouting(synthetic);
  std::vector<int32_t> sequences(kSequences);
  std::iota(sequences.begin(), sequences.end(), 0);
  const Lockstep lockstep = MakeLockstep(trace, sequences, 1);
  ArmSetup arm_setup;
  arm_setup.trace = &trace;
  arm_setup.lockstep = &lockstep;
  arm_setup.recall = {.89, .80, .75, .72, .69, .67, .64, .62};
  arm_setup.prediction_ns = 20'000;
  const std::vector<uint64_t> uses(static_cast<size_t>(lockstep.base.back()), 1);
  arm_setup.training_uses = uses;

  BenchReport report;
  report.bench = "simulator";
  report.title = "simulated (step, layer) events in a second of one core";
  HostWatch host;
  for (const std::string_view name : ArmNames()) {
    std::vector<double> millions;
    std::string note;
    for (int32_t i = 0; i < setup.Repetitions(kRepetitions); ++i) {
      ASSIGN_OR_RETURN(Arm arm, MakeArm(name, arm_setup, kExpertBytes));
      arm.options.slots = {static_cast<int32_t>(kResident * kLayers * kExperts)};
      arm.options.link_bytes_per_second = 25'000'000'000;
      arm.options.link_latency_ns = 10'000;
      const int64_t begin_ns = ThreadCpuNs();
      ASSIGN_OR_RETURN(
          const DeviceSimResult result,
          SimulateDevice(trace, lockstep, MeasuredTimes(kCosts), std::move(arm.options)));
      const int64_t ns = ThreadCpuNs() - begin_ns;
      millions.push_back(static_cast<double>(result.events) * 1e3 / static_cast<double>(ns));
      note = fmt::format("{:.0f} ns an event, {:.2f} misses each", 1e3 / millions.back(),
                         static_cast<double>(result.misses) / static_cast<double>(result.events));
    }
    report.AddRow(std::string(name), "million/s", millions, note);
    if (name == "lru") report.AddGoal("lru", "million/s", millions, true, kGoalMillions);
  }
  report.machine = host.Describe();
  report.AddSetting("routing",
                    fmt::format("drawn: {} layers of {} experts, top-{}, {} sequences "
                                "of {} tokens, {:.0f} % resident",
                                kLayers, kExperts, kTopK, kSequences, kTokens, 100 * kResident));
  report.AddSetting("time", "of the thread's processor time");
  return report;
}

}  // namespace expertflow
