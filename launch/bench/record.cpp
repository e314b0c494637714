#include <array>
#include <memory>
#include <vector>

#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_setup.h"
#include "worker/routing_recorder.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 30;
constexpr int32_t kStepsPerRepetition = 32;
constexpr int32_t kPromptTokens = 16;
constexpr int32_t kWarmUpSteps = 4;
constexpr double kGoalPercent = 3;

// One arm: an engine, and what it is recorded with.
struct Arm {
  std::unique_ptr<TimelineRecorder> timeline;
  std::unique_ptr<TraceFileSink> file;
  std::unique_ptr<RoutingRecorder> recorder;
  std::unique_ptr<BenchEngine> engine;
  std::vector<double> step_us;
};

Status Prepare(const BenchSetup& setup, const BenchModel& model, const char* record, bool features,
               int32_t new_tokens, Arm* arm) {
  BenchEngineOptions options = {
      .threads = setup.threads, .kernels = setup.kernels, .positions = 64 + new_tokens};
  if (record != nullptr) {
    ASSIGN_OR_RETURN(arm->timeline, TimelineRecorder::Create("", true));
    options.timeline = arm->timeline.get();
    arm->file = std::make_unique<TraceFileSink>(setup.work_folder + "/" + record);
    const TraceShape shape =
        RecordedShape(model.store(), model.architecture().shape(), features, "{}");
    ASSIGN_OR_RETURN(arm->recorder, RoutingRecorder::Create(shape, *arm->file));
  }
  ASSIGN_OR_RETURN(arm->engine, BenchEngine::Create(model, options));
  arm->engine->engine().RecordTo(arm->recorder.get());
  return arm->engine->Start(RandomPrompt(kPromptTokens, model.architecture().shape().vocab, 1),
                            new_tokens);
}

// Microseconds of a step, over some.
Result<double> StepUs(Arm& arm, int32_t steps) {
  std::vector<int32_t> tokens;
  int64_t ns = 0;
  for (int32_t i = 0; i < steps; ++i) {
    ASSIGN_OR_RETURN(const int64_t step_ns, arm.engine->Step(&tokens));
    ns += step_ns;
  }
  return static_cast<double>(ns) * 1e-3 / steps;
}

}  // namespace

Result<BenchReport> BenchRecord(const BenchSetup& setup) {
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  ASSIGN_OR_RETURN(
      const BenchModel model,
      BenchModel::Open(setup.model.empty() ? setup.bundled_model : setup.model, setup.work_folder));
  const int32_t new_tokens = 1 + kWarmUpSteps + repetitions * kStepsPerRepetition;
  HostWatch host;
  std::array<Arm, 3> arms;
  RETURN_IF_ERROR(Prepare(setup, model, nullptr, false, new_tokens, &arms[0]));
  RETURN_IF_ERROR(Prepare(setup, model, "routing.eft", false, new_tokens, &arms[1]));
  RETURN_IF_ERROR(Prepare(setup, model, "features.eft", true, new_tokens, &arms[2]));
  for (Arm& arm : arms) {
    ASSIGN_OR_RETURN([[maybe_unused]] const double ignored, StepUs(arm, 1 + kWarmUpSteps));
  }
  for (int32_t repetition = 0; repetition < repetitions; ++repetition) {
    for (size_t a = 0; a < arms.size(); ++a) {
      // The first after a pause pays for the caches that the others took: each goes first in turn.
      Arm& arm = arms[(a + static_cast<size_t>(repetition)) % arms.size()];
      ASSIGN_OR_RETURN(const double us, StepUs(arm, kStepsPerRepetition));
      arm.step_us.push_back(us);
    }
  }
  for (size_t a = 1; a < arms.size(); ++a) {
    RETURN_IF_ERROR(arms[a].recorder->status());
    RETURN_IF_ERROR(arms[a].file->Close());
  }
  const auto cost = [&](const Arm& arm) {
    std::vector<double> percent = PairRatios(arm.step_us, arms[0].step_us);
    for (double& value : percent) value = 100 * (value - 1);
    return percent;
  };
  BenchReport report;
  report.bench = "record";
  report.title = "decode at batch 1 in place, with and without a recording of its routing";
  report.machine = host.Describe();
  report.AddSetting("device", arms[0].engine->DeviceSettings());
  report.AddSetting("model", model.name());
  report.AddRow("step, nothing recorded", "us", arms[0].step_us);
  report.AddRow("step, --record", "us", arms[1].step_us);
  report.AddRow("step, --record --record-features", "us", arms[2].step_us);
  report.AddRow("cost of --record", "%", cost(arms[1]));
  report.AddRow("cost with --record-features", "%", cost(arms[2]));
  report.AddGoal("cost of --record", "%", cost(arms[1]), false, kGoalPercent);
  return report;
}

}  // namespace expertflow
