#include "launch/text_quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "common/process.h"
#include "launch/bench/bench_engine.h"
#include "worker/logprobs.h"

namespace expertflow {
namespace {

constexpr int64_t kLogitBytes = int64_t{256} << 20;  // of both models, kept at a time

int32_t PositionsAtOnce(int32_t vocab) {
  const int64_t each = int64_t{2} * vocab * static_cast<int64_t>(sizeof(float));
  return static_cast<int32_t>(std::clamp<int64_t>(kLogitBytes / each, 16, 512));
}

double LogSumExp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

Result<std::unique_ptr<BenchEngine>> MakeEngine(const BenchModel& model, size_t window,
                                                int32_t threads) {
  const int32_t at_once = PositionsAtOnce(model.architecture().shape().vocab);
  return BenchEngine::Create(model, {.threads = threads > 0 ? threads : CoreCount(),
                                     .positions = static_cast<int32_t>(window) + at_once,
                                     .sequences_max = 1,
                                     .prefill_tokens = at_once});
}

Status StartWindow(const WindowedText& text, const TextWindow& window, size_t number,
                   BenchEngine* engine) {
  StartSequence start;
  start.sequence = SequenceId{number + 1};
  const auto tokens = text.tokens.begin();
  start.tokens.assign(tokens + static_cast<ptrdiff_t>(window.begin),
                      tokens + static_cast<ptrdiff_t>(window.end));
  start.prompt_tokens = static_cast<uint32_t>(start.tokens.size());
  start.max_new_tokens = 1;
  start.capture_logits = true;
  return engine->engine().Start(std::move(start));
}

Status Step(BenchEngine* engine, StepOutput* output) {
  RETURN_IF_ERROR(engine->engine().Step(output));
  if (!output->failed.empty()) return Internal(output->failed.front().message);
  return OkStatus();
}

// Sums, not yet means.
Status AddStep(const WindowedText& text, const TextWindow& window, const StepOutput& before,
               const StepOutput& after, TextQuality* sums) {
  for (size_t i = 0; i < before.captured.size(); ++i) {
    const CapturedPosition &was = before.captured[i], &is = after.captured[i];
    const size_t token = window.begin + was.position + 1;
    if (token < window.scored || token >= window.end) continue;
    const double logprob_before = LogprobsOf(was.logits, text.tokens[token], 0).front().logprob;
    const double logprob_after = LogprobsOf(is.logits, text.tokens[token], 0).front().logprob;
    const double divergence = KlDivergence(was.logits, is.logits);
    if (!std::isfinite(logprob_before + logprob_after + divergence)) {
      return Internal(
          fmt::format("token {} of the text has the log probabilities {} before and {} after",
                      token, logprob_before, logprob_after));
    }
    sums->nll_before -= logprob_before;
    sums->nll_after -= logprob_after;
    sums->divergence_mean += divergence;
    sums->divergence_max = std::max(sums->divergence_max, divergence);
    ++sums->scored;
  }
  return OkStatus();
}

}  // namespace

double KlDivergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const double p_sum = LogSumExp(p_logits), q_sum = LogSumExp(q_logits);
  double divergence = 0;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double p = static_cast<double>(p_logits[i]) - p_sum;
    const double q = static_cast<double>(q_logits[i]) - q_sum;
    divergence += std::exp(p) * (p - q);
  }
  return divergence;
}

Result<TextQuality> CompareOnText(const BenchModel& before, const BenchModel& after,
                                  const WindowedText& text, const TextQualityOptions& options) {
  ASSIGN_OR_RETURN(const auto engine_before, MakeEngine(before, text.length, options.threads));
  ASSIGN_OR_RETURN(const auto engine_after, MakeEngine(after, text.length, options.threads));
  TextQuality quality;
  StepOutput output_before, output_after;
  for (size_t number = 0; number < text.windows.size(); ++number) {
    if (options.progress) options.progress(number, text.windows.size());
    const TextWindow& window = text.windows[number];
    RETURN_IF_ERROR(StartWindow(text, window, number, engine_before.get()));
    RETURN_IF_ERROR(StartWindow(text, window, number, engine_after.get()));
    // Both take the same positions in a step.
    while (!engine_before->engine().idle()) {
      RETURN_IF_ERROR(Step(engine_before.get(), &output_before));
      RETURN_IF_ERROR(Step(engine_after.get(), &output_after));
      RETURN_IF_ERROR(AddStep(text, window, output_before, output_after, &quality));
    }
  }
  const auto scored = static_cast<double>(std::max<size_t>(1, quality.scored));
  quality.nll_before /= scored;
  quality.nll_after /= scored;
  quality.divergence_mean /= scored;
  return quality;
}

}  // namespace expertflow
