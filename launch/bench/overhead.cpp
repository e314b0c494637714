#include <fmt/format.h>

#include <string>
#include <vector>

#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/job_benches.h"
#include "launch/generation.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 15;
constexpr int32_t kPromptTokens = 32;
constexpr int32_t kNewTokens = 128;
constexpr int64_t kSilenceNs = 60'000'000'000;
constexpr double kGoalUs = 150;

// Microseconds of a decode step, on average over one request.
Result<double> StepInJob(Job& job, const std::vector<int32_t>& prompt,
                         std::vector<int32_t>* tokens) {
  SubmitRequest request;
  request.is_text = false;
  request.tokens = prompt;
  request.max_new_tokens = kNewTokens;
  request.ignore_eos = true;
  const Generation generation = RunRequests(job, {request}, {}, kSilenceNs);
  RETURN_IF_ERROR(generation.status);
  RETURN_IF_ERROR(generation.FirstFailure());
  *tokens = generation.requests[0].tokens;
  return static_cast<double>(generation.requests[0].TpotNs()) * 1e-3;
}

Result<double> StepInProcess(BenchEngine& engine, const std::vector<int32_t>& prompt,
                             std::vector<int32_t>* tokens) {
  RETURN_IF_ERROR(engine.Start(prompt, kNewTokens));
  tokens->clear();
  ASSIGN_OR_RETURN([[maybe_unused]] const int64_t prompt_ns, engine.Step(tokens));
  ASSIGN_OR_RETURN(const int64_t decode_ns, engine.RunToEnd(tokens));
  return static_cast<double>(decode_ns) * 1e-3 / (kNewTokens - 1);
}

}  // namespace

Result<BenchReport> BenchOverhead(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const BenchModel model, BenchModel::Open(path, setup.work_folder));
  ASSIGN_OR_RETURN(const auto engine, BenchEngine::Create(model, {.threads = setup.threads,
                                                                  .kernels = setup.kernels}));
  ASSIGN_OR_RETURN(const auto job,
                   StartBenchJob(path, 1,
                                 {"--device-memory", "host", "--threads",
                                  fmt::format("{}", setup.threads), "--kernels", setup.kernels}));
  HostWatch host;
  const std::vector<int32_t> prompt =
      RandomPrompt(kPromptTokens, model.architecture().shape().vocab, 1);
  std::vector<double> in_job, in_process, difference;
  std::vector<int32_t> job_tokens, process_tokens;
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  for (int32_t repetition = -1; repetition < repetitions; ++repetition) {
    ASSIGN_OR_RETURN(const double job_us, StepInJob(*job, prompt, &job_tokens));
    ASSIGN_OR_RETURN(const double process_us, StepInProcess(*engine, prompt, &process_tokens));
    if (job_tokens != process_tokens) return Internal("the job gave other tokens than the engine");
    if (repetition < 0) continue;  // warm-up
    in_job.push_back(job_us);
    in_process.push_back(process_us);
    difference.push_back(job_us - process_us);
  }
  EndBenchJob(*job);

  BenchReport report;
  report.bench = "overhead";
  report.title = "a decode step in a whole job against an engine alone";
  report.machine = host.Describe();
  report.AddSetting("device", engine->DeviceSettings());
  report.AddSetting("model", model.name());
  report.AddSetting("job", "coordinator, store and one worker in place");
  report.AddSetting("samples",
                    fmt::format("arms take turns; mean of {} steps, batch 1", kNewTokens - 1));
  report.AddRow("engine in one process", "us", in_process, "limit");
  report.AddRow("job", "us", in_job, "as the coordinator sees it, client idle");
  report.AddRow("difference, pair by pair", "us", difference);
  report.AddGoal("what a job adds to a decode step", "us", difference, false, kGoalUs);
  return report;
}

}  // namespace expertflow
