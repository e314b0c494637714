#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/process.h"
#include "launch/commands.h"
#include "launch/generation.h"
#include "launch/job.h"
#include "launch/job_setup.h"
#include "launch/model_source.h"
#include "launch/policy_tables.h"
#include "launch/progress.h"
#include "launch/prompts.h"
#include "launch/report.h"
#include "launch/trace/recording.h"
#include "launch/worker_setup.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {
namespace {

constexpr int64_t kStatusMs = 2000;
constexpr int64_t kStatusRetryUs = 20'000;

// Everything that is known before the job starts.
struct RunPlan {
  std::vector<std::string> prompts;
  ModelSource model;
  MemoryPlan memory;
};

// One job from start to end.
struct RunOutcome {
  Generation generation;
  std::string status_json;  // empty when the job could not tell any more
  int64_t start_ns = 0;     // until it took requests
  int signal = 0;
};

Status CheckPrompts(const Options& options, const RunPlan& plan) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(options, plan.model));
  const ModelShape& shape = plan.model.architecture->shape();
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer->EncodePrompt(plan.prompts[i]));
    if (ids.size() >= static_cast<size_t>(shape.context)) {
      return InvalidArgument(
          fmt::format("prompt {}: {} tokens, but the model's context is {}; shorten it", i + 1,
                      ids.size(), shape.context));
    }
    if (ids.size() >= plan.memory.kv_tokens()) {
      return InvalidArgument(
          fmt::format("prompt {}: {} tokens, but the KV cache holds {}; raise --kv-memory", i + 1,
                      ids.size(), plan.memory.kv_tokens()));
    }
  }
  return OkStatus();
}

// Bad input is found here, before anything is started or allocated.
Result<RunPlan> PlanRun(const Options& options) {
  RunPlan plan;
  RETURN_IF_ERROR(WorkerOptionsFrom(options).status());
  ASSIGN_OR_RETURN(plan.model, OpenModel(options.Text("model")));
  ASSIGN_OR_RETURN(plan.memory, PlanFor(options, plan.model));
  RETURN_IF_ERROR(LoadPolicyTables(options, plan.model).status());
  ASSIGN_OR_RETURN(plan.prompts, GatherPrompts(options));
  RETURN_IF_ERROR(CheckPrompts(options, plan));
  return plan;
}

// Workers report now and then: waits a moment until the figures cover what was generated.
std::string FinalStatus(Job& job, const Generation& generation) {
  uint64_t expected = 0;  // a prompt's last token and the generated ones but the last are fed
  for (const RequestOutcome& request : generation.requests) {
    if (request.done.generated_tokens == 0) continue;
    expected += request.done.prompt_tokens + request.done.generated_tokens - 1;
  }
  const Deadline deadline = Deadline::AfterMs(kStatusMs);
  std::string json;
  while (true) {
    Result<std::string> status = job.client().QueryStatus(deadline);
    if (!status.ok()) return json;
    json = std::move(*status);
    const JobFigures figures = FiguresOf(json);
    if (figures.prefill_tokens + figures.decode_tokens + figures.reused_tokens >= expected ||
        deadline.Passed()) {
      return json;
    }
    ::usleep(kStatusRetryUs);
  }
}

// Waits until the job takes requests, and runs them.
RunOutcome UseJob(const Options& options, const std::vector<std::string>& prompts, Job& job,
                  const GenerationSinks& sinks) {
  RunOutcome outcome;
  const int64_t start_ns = NowNs();
  {
    ProgressLine progress(options.Flag("verbose"));
    progress.Show("starting");
    outcome.generation.status = job.WaitUntilReady(
        Deadline::AfterNs(options.DurationNs("start-timeout")), [&](const JobState& state) {
          if (state.phase == JobPhase::kLoading && state.bytes_total > 0) {
            progress.ShowBytes("loading", state.bytes_done, state.bytes_total);
          }
        });
  }
  outcome.start_ns = NowNs() - start_ns;
  if (outcome.generation.status.ok()) {
    outcome.generation = RunRequests(job, MakeRequests(options, prompts), sinks,
                                     2 * options.DurationNs("stall-timeout"));
    const Status& status = outcome.generation.status;
    if (status.ok()) outcome.status_json = FinalStatus(job, outcome.generation);
  }
  outcome.signal = job.signal();
  return outcome;
}

RunOutcome RunJob(const Options& options, const RunPlan& plan, SignalWatcher& signals,
                  const GenerationSinks& sinks) {
  const int64_t start_ns = NowNs();
  const std::string& model =
      plan.model.store_file.empty() ? plan.model.folder : plan.model.store_file;
  Result<std::unique_ptr<Job>> job = Job::Start(MakeJobSetup(options, model), &signals);
  if (!job.ok()) {
    RunOutcome outcome;
    outcome.generation.status = job.status();
    return outcome;
  }
  const int64_t spawn_ns = NowNs() - start_ns;
  RunOutcome outcome = UseJob(options, plan.prompts, **job, sinks);
  outcome.start_ns += spawn_ns;
  (*job)->Shutdown(Deadline::AfterMs(kShutdownMs));
  if (const std::string record = options.Text("record"); !record.empty()) {
    const Status gathered = GatherRecording(record, (*job)->name());
    if (outcome.generation.status.ok()) outcome.generation.status = gathered;
  }
  return outcome;
}

nlohmann::json ParseOrNull(const std::string& text) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json() : value;
}

// `plan` is null for a job that ran already; its status tells the model and the memory plan.
std::string RunJson(const Options& options, const std::vector<std::string>& prompts,
                    const RunPlan* plan, const RunOutcome& outcome,
                    std::optional<bool> same_as_resident) {
  nlohmann::json requests = nlohmann::json::array();
  for (size_t i = 0; i < outcome.generation.requests.size(); ++i) {
    const RequestOutcome& request = outcome.generation.requests[i];
    requests.push_back({{"prompt", prompts[i]},
                        {"text", request.text},
                        {"tokens", request.tokens},
                        {"finish", FinishReasonName(request.done.finish)},
                        {"error", request.done.message},
                        {"prompt_tokens", request.done.prompt_tokens},
                        {"generated_tokens", request.done.generated_tokens},
                        {"ttft_ns", request.done.ttft_ns},
                        {"tpot_ns", request.TpotNs()},
                        {"total_ns", request.done.total_ns},
                        {"requeues", request.done.requeues}});
  }
  nlohmann::json run = {
      {"format", "expertflow-run"},
      {"version", 1},
      {"model", plan == nullptr ? nlohmann::json() : nlohmann::json(plan->model.folder)},
      {"error", outcome.generation.status.ok() ? outcome.generation.FirstFailure().message()
                                               : outcome.generation.status.message()},
      {"requests", std::move(requests)},
      {"prompt_tokens", outcome.generation.prompt_tokens()},
      {"generated_tokens", outcome.generation.generated_tokens()},
      {"wall_ns", outcome.generation.wall_ns},
      {"start_ns", outcome.start_ns},
      {"tokens_per_second", outcome.generation.tokens_per_second()},
      {"memory_plan", ParseOrNull(plan == nullptr ? "" : MemoryPlanJson(plan->memory))},
      {"requested", ParseOrNull(options.ProvenanceJson())},
      {"status", ParseOrNull(outcome.status_json)}};
  run["same_as_resident"] = same_as_resident ? nlohmann::json(*same_as_resident) : nlohmann::json();
  return run.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The options of the job that has everything at hand: one worker that computes in place.
Options ResidentOptions(const Options& options) {
  return options.Without("expert-memory")
      .Without("link")
      .Without("trace")
      .Without("record")
      .Without("record-features")
      .With({{"device-memory", "host"}, {"prefetch", "off"}, {"workers", "1"}});
}

// Empty: the same tokens; otherwise where they differ.
std::string FirstDifference(const Generation& a, const Generation& b) {
  for (size_t i = 0; i < a.requests.size(); ++i) {
    const std::vector<int32_t>& left = a.requests[i].tokens;
    const std::vector<int32_t>& right = b.requests[i].tokens;
    if (left == right) continue;
    const auto at = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
    return fmt::format("prompt {} differs from token {} on", i + 1, at.first - left.begin() + 1);
  }
  return "";
}

// kInvalidArgument and the like from here are failures: the input was checked before.
int ExitCodeOfOutcome(const Options& options, const RunOutcome& outcome) {
  const Status& status = outcome.generation.status;
  if (outcome.signal != 0) return kExitSignal + outcome.signal;
  if (!status.ok()) return Fail(options, status, kExitFailure);
  if (const Status failure = outcome.generation.FirstFailure(); !failure.ok()) {
    return Fail(options, failure, kExitFailure);
  }
  return kExitOk;
}

GenerationSinks SinksOf(TextPrinter& printer) {
  return {.text = [&](size_t request, const std::string& text) { printer.OnText(request, text); },
          .done = [&](size_t request) { printer.OnDone(request); },
          .captured = {}};
}

// What is settled when a job starts cannot be asked of one that runs.
Status CheckOptionsForRunningJob(const Options& options) {
  for (const OptionSpec& spec : AllOptions()) {
    const bool of_the_start = spec.For(Command::kCoordinator) || spec.name == "report" ||
                              spec.name == "check-resident" || spec.name == "role-log-level";
    const bool of_the_client = spec.name == "job" || spec.name == "job-dir" ||
                               spec.name == "config" || spec.name == "start-timeout" ||
                               spec.name == "stall-timeout";
    if (!spec.For(Command::kRun) || !of_the_start || of_the_client) continue;
    if (options.Source(spec.name) != OptionSource::kCommandLine) continue;
    return InvalidArgument(fmt::format(
        "--{}: is settled when a job starts; leave it out with --job, --job-dir", spec.name));
  }
  return OkStatus();
}

int RunOnRunningJob(const Options& options) {
  if (const Status status = CheckOptionsForRunningJob(options); !status.ok()) {
    return Fail(options, status);
  }
  const Result<std::vector<std::string>> prompts = GatherPrompts(options);
  if (!prompts.ok()) return Fail(options, prompts.status());
  Result<SignalWatcher> signals = SignalWatcher::Create();
  if (!signals.ok()) return Fail(options, signals.status(), kExitFailure);
  Result<std::unique_ptr<Job>> job =
      Job::Attach(options.Text("job"), options.Text("job-dir"), &*signals);
  if (!job.ok()) return Fail(options, job.status());
  TextPrinter printer(*prompts);
  const RunOutcome outcome = UseJob(options, *prompts, **job, SinksOf(printer));
  printer.Flush();
  const int exit_code = ExitCodeOfOutcome(options, outcome);
  const std::string json = RunJson(options, *prompts, nullptr, outcome, std::nullopt);
  if (const Status written = WriteJsonOption(options, json); !written.ok()) {
    return Fail(options, written, kExitFailure);
  }
  return exit_code;
}

}  // namespace

int RunCommand(const Options& options) {
  if (options.Given("job") || options.Given("job-dir")) return RunOnRunningJob(options);
  Result<RunPlan> plan = PlanRun(options);
  if (!plan.ok()) return Fail(options, plan.status());
  Result<SignalWatcher> signals = SignalWatcher::Create();
  if (!signals.ok()) return Fail(options, signals.status(), kExitFailure);
  SweepJobRemains();
  if (const Status host = CheckHost(options, plan->model, plan->memory); !host.ok()) {
    return Fail(options, host, kExitFailure);
  }

  if (options.Flag("report")) {
    fmt::print(stderr, "{}{}", DescribeModel(plan->model),
               DescribePlan(plan->memory, options.Integer("workers")));
  }
  TextPrinter printer(plan->prompts);
  const RunOutcome outcome = RunJob(options, *plan, *signals, SinksOf(printer));
  printer.Flush();
  int exit_code = ExitCodeOfOutcome(options, outcome);
  if (options.Flag("report") && !outcome.status_json.empty()) {
    fmt::print("\n{}",
               DescribeRun(outcome.generation, FiguresOf(outcome.status_json), outcome.start_ns));
  }

  std::optional<bool> same;
  if (options.Flag("check-resident") && exit_code == kExitOk) {
    const RunOutcome resident = RunJob(ResidentOptions(options), *plan, *signals, {});
    exit_code = ExitCodeOfOutcome(options, resident);
    if (exit_code == kExitOk) {
      const std::string difference = FirstDifference(outcome.generation, resident.generation);
      same = difference.empty();
      fmt::print("same tokens as with all experts resident: {}\n",
                 *same ? std::string("yes") : fmt::format("no ({})", difference));
      if (!*same) exit_code = kExitFailure;
    }
  }
  if (const Status json =
          WriteJsonOption(options, RunJson(options, plan->prompts, &*plan, outcome, same));
      !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  return exit_code;
}

}  // namespace expertflow
