#include "launch/load/batching_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "common/cpu_time.h"
#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"

namespace expertflow {
namespace {

// Of the requests a second that continuous batches can do when all come at once.
constexpr std::array<double, 8> kLoads = {0.1, 0.2, 0.3, 0.4, 0.55, 0.7, 0.85, 1.0};
// A load counts when so many of its requests meet the service level.
constexpr double kAttained = 0.9;
constexpr int32_t kSequencesMax = 16;
constexpr double kGoal = 2;

// Where the times begin is left out: the first request comes at once.
std::vector<Arrival> AtRate(std::vector<Arrival> arrivals, double per_second) {
  const int64_t first_ns = arrivals.front().at_ns;
  const auto span_ns = static_cast<double>(arrivals.back().at_ns - first_ns);
  const double wanted_ns = static_cast<double>(arrivals.size()) / per_second * 1e9;
  const double scale = span_ns > 0 ? wanted_ns / span_ns : 0;
  for (Arrival& arrival : arrivals) {
    arrival.at_ns = static_cast<int64_t>(static_cast<double>(arrival.at_ns - first_ns) * scale);
  }
  return arrivals;
}

void Note(const TokenEvent& event, int64_t now_ns, LoadOutcome* outcome) {
  if (outcome->first_ns == 0) outcome->first_ns = now_ns;
  if (outcome->last_ns > 0) {
    outcome->gaps_ms.push_back(static_cast<float>(now_ns - outcome->last_ns) * 1e-6F);
  }
  outcome->last_ns = now_ns;
  ++outcome->completion_tokens;
  if (event.finish == FinishReason::kNone) return;
  outcome->done_ns = now_ns;
  outcome->ok = true;
}

// Runs all of them; sequence i + 1 of `first_sequence` is arrivals[i].
Result<std::vector<LoadOutcome>> RunArrivals(const std::vector<Arrival>& arrivals, int32_t vocab,
                                             uint64_t first_sequence, Engine& engine) {
  std::vector<LoadOutcome> outcomes(arrivals.size());
  int64_t now_ns = 0;
  size_t next = 0;
  StepOutput output;
  while (next < arrivals.size() || !engine.idle()) {
    if (engine.idle()) now_ns = std::max(now_ns, arrivals[next].at_ns);
    for (; next < arrivals.size() && arrivals[next].at_ns <= now_ns; ++next) {
      StartSequence start;
      start.sequence = {first_sequence + next};
      start.tokens = RandomPrompt(arrivals[next].prompt_tokens, vocab, static_cast<uint32_t>(next));
      start.prompt_tokens = static_cast<uint32_t>(start.tokens.size());
      start.max_new_tokens = static_cast<uint32_t>(arrivals[next].max_tokens);
      outcomes[next].due_ns = arrivals[next].at_ns;
      outcomes[next].prompt_tokens = arrivals[next].prompt_tokens;
      RETURN_IF_ERROR(engine.Start(std::move(start)));
    }
    const int64_t begin_ns = ThreadCpuNs();
    RETURN_IF_ERROR(engine.Step(&output));
    now_ns += ThreadCpuNs() - begin_ns;
    if (!output.failed.empty()) return Internal(output.failed.front().message);
    for (const TokenEvent& event : output.tokens) {
      Note(event, now_ns, &outcomes[event.sequence.value - first_sequence]);
    }
  }
  return outcomes;
}

struct BatchArm {
  std::string name;
  std::unique_ptr<BenchEngine> engine;
  uint64_t sequences = 0;
  double goodput_most = 0;

  Result<LoadReport> Run(const std::vector<Arrival>& arrivals, int32_t vocab,
                         const ServiceLevel& level) {
    ASSIGN_OR_RETURN(const std::vector<LoadOutcome> outcomes,
                     RunArrivals(arrivals, vocab, sequences + 1, engine->engine()));
    sequences += arrivals.size();
    return ReportOf(outcomes, level);
  }
};

Result<std::vector<BatchArm>> MakeArms(const BenchSetup& setup, const BenchModel& model,
                                       const std::vector<Arrival>& arrivals) {
  int32_t positions = 0;
  for (const Arrival& arrival : arrivals) {
    positions = std::max(positions, arrival.prompt_tokens + arrival.max_tokens);
  }
  std::vector<BatchArm> arms(2);
  arms[0].name = "continuous";
  arms[1].name = "static";
  for (BatchArm& arm : arms) {
    BenchEngineOptions options;
    options.threads = 1;
    options.kernels = setup.kernels;
    options.positions = (positions + kKvBlockTokens) * kSequencesMax;
    options.sequences_max = kSequencesMax;
    options.static_batches = &arm != &arms[0];
    ASSIGN_OR_RETURN(arm.engine, BenchEngine::Create(model, options));
  }
  return arms;
}

}  // namespace

Result<BenchReport> BenchBatching(const BenchSetup& setup, const std::vector<Arrival>& arrivals,
                                  const ServiceLevel& level) {
  if (arrivals.empty()) return InvalidArgument("no request arrives; see --arrivals, --requests");
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const BenchModel model, BenchModel::Open(path, setup.work_folder));
  const int32_t vocab = model.architecture().shape().vocab;
  ASSIGN_OR_RETURN(std::vector<BatchArm> arms, MakeArms(setup, model, arrivals));
  HostWatch host;
  std::vector<Arrival> at_once = arrivals;
  for (Arrival& arrival : at_once) arrival.at_ns = 0;
  ASSIGN_OR_RETURN(const LoadReport all, arms[0].Run(at_once, vocab, level));
  const double most = all.PerSecond(static_cast<double>(all.done));

  BenchReport report;
  report.bench = "batching";
  report.title = "goodput of continuous and static batches under the same arrivals";
  report.AddSetting("device", arms[0].engine->DeviceSettings());
  report.AddSetting("model", model.name());
  report.AddSetting(
      "requests", fmt::format("{}, {:.0f} prompt and {:.0f} new tokens on average", arrivals.size(),
                              static_cast<double>(all.prompt_tokens) / double(all.done),
                              static_cast<double>(all.completion_tokens) / double(all.done)));
  report.AddSetting("service level", fmt::format("first token within {:.0f} ms, then one in {:.0f}",
                                                 level.ttft_ms, level.tpot_ms));
  report.AddSetting("sequences at once", fmt::format("{}", kSequencesMax));
  report.AddSetting("time", "of the steps' own work on one thread; arrivals in between");
  report.AddRow("all at once, continuous", "requests/s", {most}, "what the engine can do");
  for (const double load : kLoads) {
    const std::vector<Arrival> scaled = AtRate(arrivals, load * most);
    for (BatchArm& arm : arms) {
      ASSIGN_OR_RETURN(const LoadReport run, arm.Run(scaled, vocab, level));
      const double goodput = run.PerSecond(static_cast<double>(run.good));
      if (static_cast<double>(run.good) >= kAttained * static_cast<double>(run.requests)) {
        arm.goodput_most = std::max(arm.goodput_most, goodput);
      }
      report.AddRow(
          fmt::format("{:3.0f} % of it, {}", 100 * load, arm.name), "good/s", {goodput},
          fmt::format("{} of {} good; TTFT p50 {:.0f} p99 {:.0f} ms, TPOT p50 {:.1f} ms", run.good,
                      run.requests, run.ttft_ms.p50, run.ttft_ms.p99, run.tpot_ms.p50));
    }
  }
  report.machine = host.Describe();
  if (arms[1].goodput_most == 0)
    return FailedPrecondition("static batches never meet the service level; allow more time");
  report.AddGoal(
      fmt::format("most goodput with {:.0f} % good, continuous over static", 100 * kAttained),
      "times", {arms[0].goodput_most / arms[1].goodput_most}, true, kGoal);
  return report;
}

}  // namespace expertflow
