#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_server.h"
#include "launch/bench/job_benches.h"
#include "launch/generation.h"
#include "launch/load/load_client.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 15;
constexpr int32_t kPromptTokens = 32;
constexpr int32_t kNewTokens = 128;
constexpr int64_t kSilenceNs = 60'000'000'000;
constexpr double kGoalUs = 150;
constexpr double kServerGoal = 1.03;

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

// As a client sees it that gets each token when it is there.
Result<double> StepInServer(const BenchServer& server, const std::vector<int32_t>& prompt) {
  const std::string body = nlohmann::json({{"prompt", prompt},
                                           {"max_tokens", kNewTokens},
                                           {"temperature", 0},
                                           {"ignore_eos", true},
                                           {"stream", true},
                                           {"stream_options", {{"include_usage", true}}}})
                               .dump();
  const std::string head = server.target().url.Head("POST", "/v1/completions", "");
  const std::string request =
      head + fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                         body.size(), body);
  ASSIGN_OR_RETURN(const std::vector<LoadOutcome> outcomes,
                   RunLoad(server.target(), {{0, request}}, {}));
  const LoadOutcome& outcome = outcomes.at(0);
  if (!outcome.ok || outcome.completion_tokens != kNewTokens) {
    return Internal(fmt::format("the server gave {} tokens, status {}", outcome.completion_tokens,
                                outcome.status));
  }
  return static_cast<double>(outcome.last_ns - outcome.first_ns) * 1e-3 / (kNewTokens - 1);
}

}  // namespace

Result<BenchReport> BenchOverhead(const BenchSetup& setup) {
  const std::string path = setup.model.empty() ? setup.bundled_model : setup.model;
  ASSIGN_OR_RETURN(const BenchModel model, BenchModel::Open(path, setup.work_folder));
  ASSIGN_OR_RETURN(const auto engine, BenchEngine::Create(model, {.threads = setup.threads,
                                                                  .kernels = setup.kernels}));
  const std::vector<std::string> arguments = {"--device-memory", "host",
                                              "--threads",       fmt::format("{}", setup.threads),
                                              "--kernels",       setup.kernels};
  ASSIGN_OR_RETURN(const auto job, StartBenchJob(path, 1, arguments));
  ASSIGN_OR_RETURN(const auto server, BenchServer::Start(setup.program, path, arguments));
  HostWatch host;
  const std::vector<int32_t> prompt =
      RandomPrompt(kPromptTokens, model.architecture().shape().vocab, 1);
  std::vector<double> in_job, in_process, in_server, difference;
  std::vector<int32_t> job_tokens, process_tokens;
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  for (int32_t repetition = -1; repetition < repetitions; ++repetition) {
    ASSIGN_OR_RETURN(const double job_us, StepInJob(*job, prompt, &job_tokens));
    ASSIGN_OR_RETURN(const double process_us, StepInProcess(*engine, prompt, &process_tokens));
    ASSIGN_OR_RETURN(const double server_us, StepInServer(*server, prompt));
    if (job_tokens != process_tokens) return Internal("the job gave other tokens than the engine");
    if (repetition < 0) continue;  // warm-up
    in_job.push_back(job_us);
    in_process.push_back(process_us);
    in_server.push_back(server_us);
    difference.push_back(job_us - process_us);
  }
  EndBenchJob(*job);

  BenchReport report;
  report.bench = "overhead";
  report.title = "a decode step in a whole job against an engine alone";
  report.machine = host.Describe();
  report.AddSetting("device", engine->DeviceSettings());
  report.AddSetting("model", model.name());
  report.AddSetting("job", "coordinator, store and one worker in place; the server has its own");
  report.AddSetting("samples",
                    fmt::format("arms take turns; mean of {} steps, batch 1", kNewTokens - 1));
  report.AddRow("engine in one process", "us", in_process, "limit");
  report.AddRow("job", "us", in_job, "as the coordinator sees it, client idle");
  report.AddRow("difference, pair by pair", "us", difference);
  report.AddRow("server", "us", in_server, "as a client of its stream sees it");
  const std::vector<double> server_ratio = PairRatios(in_server, in_job);
  report.AddRow("server over job", "times", server_ratio);
  report.AddGoal("what a job adds to a decode step", "us", difference, false, kGoalUs);
  report.AddGoal("a decode step through the server, of one in a job", "times", server_ratio, false,
                 kServerGoal);
  return report;
}

}  // namespace expertflow
