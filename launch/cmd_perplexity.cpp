#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/units.h"
#include "launch/commands.h"
#include "launch/generation.h"
#include "launch/job.h"
#include "launch/job_setup.h"
#include "launch/model_source.h"
#include "launch/progress.h"
#include "launch/text_windows.h"
#include "launch/worker_setup.h"

namespace expertflow {
namespace {

constexpr size_t kWindowsAtOnce = 16;  // submitted together, whatever a worker runs at once

struct Measurement {
  WindowedText text;
  double nll_sum = 0;
  size_t scored = 0;
  int64_t wall_ns = 0;
  int signal = 0;

  double nll() const { return nll_sum / static_cast<double>(std::max<size_t>(1, scored)); }
};

// Some windows as prompts, with the log probability of each of their tokens.
Status ScoreWindows(const Options& options, Job& job, size_t first, size_t count,
                    Measurement* measurement) {
  std::vector<SubmitRequest> requests;
  std::vector<std::vector<float>> logprobs;
  for (size_t i = first; i < first + count; ++i) {
    const TextWindow& window = measurement->text.windows[i];
    const auto at = measurement->text.tokens.begin();
    SubmitRequest request;
    request.is_text = false;
    request.tokens.assign(at + static_cast<ptrdiff_t>(window.begin),
                          at + static_cast<ptrdiff_t>(window.end));
    request.max_new_tokens = 1;
    request.ignore_eos = true;
    request.logprobs = 0;
    request.prompt_logprobs = true;
    requests.push_back(std::move(request));
    logprobs.emplace_back(window.end - window.begin, NAN);
  }
  GenerationSinks sinks;
  sinks.captured = [&](size_t request, const CapturedPosition& captured) {
    const size_t next = size_t{captured.position} + 1;
    if (next < logprobs[request].size() && !captured.logprobs.empty()) {
      logprobs[request][next] = captured.logprobs.front().logprob;
    }
  };
  const Generation generation =
      RunRequests(job, std::move(requests), sinks, 2 * options.DurationNs("stall-timeout"));
  RETURN_IF_ERROR(generation.status);
  RETURN_IF_ERROR(generation.FirstFailure());
  for (size_t i = 0; i < count; ++i) {
    const TextWindow& window = measurement->text.windows[first + i];
    for (size_t token = window.scored; token < window.end; ++token) {
      const double logprob = logprobs[i][token - window.begin];
      if (!std::isfinite(logprob)) {
        return Internal(
            fmt::format("token {} of the text has the log probability {}", token, logprob));
      }
      measurement->nll_sum -= logprob;
      ++measurement->scored;
    }
  }
  return OkStatus();
}

Status Measure(const Options& options, const ModelSource& model, Measurement* measurement) {
  ASSIGN_OR_RETURN(SignalWatcher signals, SignalWatcher::Create());
  const std::string& path = model.store_file.empty() ? model.folder : model.store_file;
  ASSIGN_OR_RETURN(const std::unique_ptr<Job> job,
                   Job::Start(MakeJobSetup(options, path), &signals));
  ProgressLine progress(options.Flag("verbose"));
  progress.Show("starting");
  Status status = job->WaitUntilReady(Deadline::AfterNs(options.DurationNs("start-timeout")), {});
  const int64_t start_ns = NowNs();
  const size_t windows = measurement->text.windows.size();
  for (size_t first = 0; status.ok() && first < windows; first += kWindowsAtOnce) {
    progress.Show(fmt::format("window {} of {}", first + 1, windows));
    status =
        ScoreWindows(options, *job, first, std::min(kWindowsAtOnce, windows - first), measurement);
  }
  measurement->wall_ns = NowNs() - start_ns;
  progress.Clear();
  measurement->signal = job->signal();
  job->Shutdown(Deadline::AfterMs(kShutdownMs));
  return status;
}

std::string PerplexityJson(const Options& options, const Measurement& measurement) {
  const nlohmann::json json = {{"format", "expertflow-perplexity"},
                               {"version", 1},
                               {"model", options.Text("model")},
                               {"text", options.Text("text")},
                               {"tokens", measurement.text.tokens.size()},
                               {"tokens_scored", measurement.scored},
                               {"window", measurement.text.length},
                               {"window_step", measurement.text.step},
                               {"windows", measurement.text.windows.size()},
                               {"nll", measurement.nll()},
                               {"perplexity", std::exp(measurement.nll())},
                               {"wall_ns", measurement.wall_ns}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

int PerplexityCommand(const Options& options) {
  if (const Result<WorkerOptions> worker = WorkerOptionsFrom(options); !worker.ok()) {
    return Fail(options, worker.status());
  }
  const Result<ModelSource> model = OpenModel(options.Text("model"));
  if (!model.ok()) return Fail(options, model.status());
  const Result<MemoryPlan> memory = PlanFor(options, *model);
  if (!memory.ok()) return Fail(options, memory.status());
  Result<WindowedText> text = WindowText(options, *model, memory->kv_tokens());
  if (!text.ok()) return Fail(options, text.status());
  Measurement measurement{.text = *std::move(text)};
  if (const Status host = CheckHost(options, *model, *memory); !host.ok()) {
    return Fail(options, host, kExitFailure);
  }
  const Status status = Measure(options, *model, &measurement);
  if (measurement.signal != 0) return kExitSignal + measurement.signal;
  if (!status.ok()) return Fail(options, status, kExitFailure);
  if (options.Text("json") != "-") {
    fmt::print(
        "perplexity {:.6g} over {} of {} tokens (windows of {}, every {}), {} tokens/s\n",
        std::exp(measurement.nll()), measurement.scored, measurement.text.tokens.size(),
        measurement.text.length, measurement.text.step,
        static_cast<int64_t>(static_cast<double>(measurement.scored) * 1e9 /
                             static_cast<double>(std::max<int64_t>(1, measurement.wall_ns))));
  }
  if (const Status json = WriteJsonOption(options, PerplexityJson(options, measurement));
      !json.ok()) {
    return Fail(options, json, kExitFailure);
  }
  return kExitOk;
}

}  // namespace expertflow
