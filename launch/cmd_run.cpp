#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/mapped_file.h"
#include "common/process.h"
#include "common/units.h"
#include "expert_store/host_limits.h"
#include "launch/commands.h"
#include "launch/generation.h"
#include "launch/job.h"
#include "launch/job_setup.h"
#include "launch/model_source.h"
#include "launch/progress.h"
#include "launch/report.h"
#include "launch/worker_setup.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {
namespace {

constexpr size_t kPromptBytesMax = size_t{64} << 20;
constexpr int64_t kShutdownMs = 5000;
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

std::string WithoutLastNewline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

Result<std::vector<std::string>> GatherPrompts(const Options& options) {
  std::vector<std::string> prompts = options.TextList("prompt");
  for (const std::string& file : options.TextList("prompt-file")) {
    ASSIGN_OR_RETURN(std::string text, ReadFileToString(file, kPromptBytesMax));
    prompts.push_back(WithoutLastNewline(std::move(text)));
  }
  if (prompts.empty()) {
    if (::isatty(STDIN_FILENO) != 0) {
      return InvalidArgument(
          "no prompt: give --prompt TEXT, --prompt-file FILE, or standard input");
    }
    std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    prompts.push_back(WithoutLastNewline(std::move(text)));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      return InvalidArgument(fmt::format("prompt {}: expected some text, found none", i + 1));
    }
  }
  return prompts;
}

Status CheckPrompts(const Options& options, const RunPlan& plan) {
  const std::string file = plan.model.TokenizerFile(options);
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(file));
  const ModelShape& shape = plan.model.architecture->shape();
  if (tokenizer->vocab_size() > shape.vocab) {
    return InvalidArgument(fmt::format("{}: token id {} is beyond the model's vocabulary of {}",
                                       file, tokenizer->vocab_size() - 1, shape.vocab));
  }
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer->Encode(plan.prompts[i]));
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
  ASSIGN_OR_RETURN(plan.prompts, GatherPrompts(options));
  RETURN_IF_ERROR(CheckPrompts(options, plan));
  return plan;
}

// A dead job leaves its segment behind until the next start sweeps it, so this comes after that.
Status CheckHost(const Options& options, const RunPlan& plan) {
  const bool packed = !plan.model.store_file.empty();
  if (!packed) RETURN_IF_ERROR(CheckSharedMemory(plan.model.store_bytes));
  const auto workers = static_cast<uint64_t>(options.Integer("workers"));
  const uint64_t need = workers * plan.memory.total_bytes() + (packed ? 0 : plan.model.store_bytes);
  ASSIGN_OR_RETURN(const uint64_t have, AvailableMemoryBytes());
  if (need > have) {
    return ResourceExhausted(fmt::format(
        "the job needs {} of memory ({} workers of {} and the store), {} are available; lower "
        "--expert-memory, --kv-memory or --workers",
        FormatBytes(need), workers, FormatBytes(plan.memory.total_bytes()), FormatBytes(have)));
  }
  return OkStatus();
}

std::vector<SubmitRequest> MakeRequests(const Options& options,
                                        const std::vector<std::string>& prompts) {
  std::vector<SubmitRequest> requests;
  for (const std::string& prompt : prompts) {
    SubmitRequest request;
    request.text = prompt;
    request.max_new_tokens = static_cast<uint32_t>(options.Integer("max-tokens"));
    request.sampling = {.temperature = static_cast<float>(options.Number("temperature")),
                        .top_p = static_cast<float>(options.Number("top-p")),
                        .top_k = static_cast<int32_t>(options.Integer("top-k")),
                        .seed = static_cast<uint64_t>(options.Integer("seed"))};
    request.stop = options.TextList("stop");
    request.ignore_eos = options.Flag("ignore-eos");
    requests.push_back(std::move(request));
  }
  return requests;
}

std::string FirstLine(const std::string& text) {
  constexpr size_t kShown = 60;
  std::string line = text.substr(0, text.find('\n'));
  if (line.size() > kShown) {
    size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
    line = line.substr(0, end) + "...";
  }
  return line;
}

// Writes the texts to standard output in the order of the prompts: the first unfinished one as it
// comes, the others when it is their turn.
class TextPrinter {
 public:
  explicit TextPrinter(const std::vector<std::string>& prompts)
      : prompts_(prompts), waiting_(prompts.size()), done_(prompts.size()) {}

  void OnText(size_t request, const std::string& text) {
    waiting_[request] += text;
    if (request == current_) Print();
  }
  void OnDone(size_t request) {
    done_[request] = true;
    while (current_ < prompts_.size() && done_[current_]) {
      Print();
      EndText();
      ++current_;
      if (current_ < prompts_.size()) Print();
    }
  }
  // After an early end: whatever there is.
  void Flush() {
    for (; current_ < prompts_.size(); ++current_) {
      if (waiting_[current_].empty() && !header_printed_) continue;
      Print();
      EndText();
    }
  }

 private:
  void Print() {
    std::string& text = waiting_[current_];
    if (text.empty() && !done_[current_]) return;
    if (!header_printed_ && prompts_.size() > 1) {
      fmt::print("--- prompt {} of {}: {}\n", current_ + 1, prompts_.size(),
                 FirstLine(prompts_[current_]));
    }
    header_printed_ = true;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    text.clear();
  }
  void EndText() {
    fmt::print("\n");
    std::fflush(stdout);
    header_printed_ = false;
  }

  const std::vector<std::string>& prompts_;
  std::vector<std::string> waiting_;
  std::vector<bool> done_;
  size_t current_ = 0;
  bool header_printed_ = false;
};

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
    if (figures.prefill_tokens + figures.decode_tokens >= expected || deadline.Passed())
      return json;
    ::usleep(kStatusRetryUs);
  }
}

RunOutcome RunJob(const Options& options, const RunPlan& plan, SignalWatcher& signals,
                  const GenerationSinks& sinks) {
  RunOutcome outcome;
  const int64_t start_ns = NowNs();
  const std::string& model =
      plan.model.store_file.empty() ? plan.model.folder : plan.model.store_file;
  Result<std::unique_ptr<Job>> started = Job::Start(MakeJobSetup(options, model), &signals);
  if (!started.ok()) {
    outcome.generation.status = started.status();
    return outcome;
  }
  Job& job = **started;
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
    outcome.generation = RunRequests(job, MakeRequests(options, plan.prompts), sinks,
                                     2 * options.DurationNs("stall-timeout"));
    const Status& status = outcome.generation.status;
    if (status.ok()) outcome.status_json = FinalStatus(job, outcome.generation);
  }
  outcome.signal = job.signal();
  job.Shutdown(Deadline::AfterMs(kShutdownMs));
  return outcome;
}

nlohmann::json ParseOrNull(const std::string& text) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json() : value;
}

std::string RunJson(const Options& options, const RunPlan& plan, const RunOutcome& outcome,
                    std::optional<bool> same_as_resident) {
  nlohmann::json requests = nlohmann::json::array();
  for (size_t i = 0; i < outcome.generation.requests.size(); ++i) {
    const RequestOutcome& request = outcome.generation.requests[i];
    requests.push_back({{"prompt", plan.prompts[i]},
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
      {"model", plan.model.folder},
      {"error", outcome.generation.status.ok() ? outcome.generation.FirstFailure().message()
                                               : outcome.generation.status.message()},
      {"requests", std::move(requests)},
      {"prompt_tokens", outcome.generation.prompt_tokens()},
      {"generated_tokens", outcome.generation.generated_tokens()},
      {"wall_ns", outcome.generation.wall_ns},
      {"start_ns", outcome.start_ns},
      {"tokens_per_second", outcome.generation.tokens_per_second()},
      {"memory_plan", ParseOrNull(MemoryPlanJson(plan.memory))},
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

}  // namespace

int RunCommand(const Options& options) {
  Result<RunPlan> plan = PlanRun(options);
  if (!plan.ok()) return Fail(options, plan.status());
  Result<SignalWatcher> signals = SignalWatcher::Create();
  if (!signals.ok()) return Fail(options, signals.status(), kExitFailure);
  SweepJobRemains();
  if (const Status host = CheckHost(options, *plan); !host.ok()) {
    return Fail(options, host, kExitFailure);
  }

  if (options.Flag("report")) {
    fmt::print(stderr, "{}{}", DescribeModel(plan->model),
               DescribePlan(plan->memory, options.Integer("workers")));
  }
  TextPrinter printer(plan->prompts);
  const GenerationSinks sinks = {
      .text = [&](size_t request, const std::string& text) { printer.OnText(request, text); },
      .done = [&](size_t request) { printer.OnDone(request); },
      .captured = {}};
  const RunOutcome outcome = RunJob(options, *plan, *signals, sinks);
  printer.Flush();
  int exit_code = ExitCodeOfOutcome(options, outcome);
  if (options.Flag("report") && !outcome.status_json.empty()) {
    fmt::print("\n{}", DescribeRun(plan->model, plan->memory, outcome.generation,
                                   FiguresOf(outcome.status_json), outcome.start_ns));
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
  if (const Status json = WriteJsonOption(options, RunJson(options, *plan, outcome, same));
      !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  return exit_code;
}

}  // namespace expertflow
