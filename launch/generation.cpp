#include "launch/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace expertflow {
namespace {

constexpr int64_t kSubmitMs = 10'000;
constexpr int64_t kCancelMs = 2'000;

class Collector {
 public:
  Collector(size_t requests, const GenerationSinks& sinks) : sinks_(sinks), outcomes_(requests) {}

  bool finished() const { return finished_ == outcomes_.size(); }
  std::vector<RequestOutcome> TakeOutcomes() { return std::move(outcomes_); }

  Status Handle(const Message& message) {
    if (const auto* delta = std::get_if<TextDelta>(&message)) return OnDelta(*delta);
    if (const auto* done = std::get_if<RequestDone>(&message)) return OnDone(*done);
    if (const auto* capture = std::get_if<RequestCapture>(&message)) {
      if (capture->request < outcomes_.size() && sinks_.captured) {
        sinks_.captured(capture->request, capture->captured);
      }
    }
    if (const auto* state = std::get_if<JobState>(&message);
        state != nullptr && state->phase == JobPhase::kFailed) {
      return Unavailable("the job failed: " + state->message);
    }
    return OkStatus();
  }

 private:
  Status OnDelta(const TextDelta& delta) {
    if (delta.request >= outcomes_.size()) return OkStatus();
    RequestOutcome& outcome = outcomes_[delta.request];
    outcome.text += delta.text;
    outcome.tokens.insert(outcome.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    if (sinks_.text && !delta.text.empty()) sinks_.text(delta.request, delta.text);
    return OkStatus();
  }

  Status OnDone(const RequestDone& done) {
    if (done.request >= outcomes_.size() || outcomes_[done.request].finished) return OkStatus();
    outcomes_[done.request].done = done;
    outcomes_[done.request].finished = true;
    ++finished_;
    if (sinks_.done) sinks_.done(done.request);
    return OkStatus();
  }

  const GenerationSinks& sinks_;
  std::vector<RequestOutcome> outcomes_;
  size_t finished_ = 0;
};

Status Collect(Job& job, int64_t silence_ns, Collector* collector) {
  while (!collector->finished()) {
    ASSIGN_OR_RETURN(const Message message, job.Next(Deadline::AfterNs(silence_ns)));
    RETURN_IF_ERROR(collector->Handle(message));
  }
  return OkStatus();
}

// Errors do not matter any more: the job ends in any case.
void CancelAll(Job& job, size_t requests, Collector* collector) {
  const Deadline deadline = Deadline::AfterMs(kCancelMs);
  for (size_t i = 0; i < requests; ++i) {
    if (!job.client().Cancel(i, deadline).ok()) return;
  }
  while (!collector->finished()) {
    const Result<Message> message = job.Next(deadline);
    if (!message.ok() || !collector->Handle(*message).ok()) return;
  }
}

}  // namespace

int64_t RequestOutcome::TpotNs() const {
  if (done.generated_tokens < 2) return 0;
  return (done.total_ns - done.ttft_ns) / (static_cast<int64_t>(done.generated_tokens) - 1);
}

uint64_t Generation::generated_tokens() const {
  uint64_t sum = 0;
  for (const RequestOutcome& request : requests) sum += request.done.generated_tokens;
  return sum;
}

uint64_t Generation::prompt_tokens() const {
  uint64_t sum = 0;
  for (const RequestOutcome& request : requests) sum += request.done.prompt_tokens;
  return sum;
}

double Generation::tokens_per_second() const {
  if (wall_ns <= 0) return 0;
  return static_cast<double>(generated_tokens()) * 1e9 / static_cast<double>(wall_ns);
}

Status Generation::FirstFailure() const {
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestDone& done = requests[i].done;
    // A request that we cancelled has no code; one that the job gave up tells why.
    const bool given_up = done.finish == FinishReason::kCancelled && done.code != 0;
    if (!requests[i].finished || (done.finish != FinishReason::kError && !given_up)) continue;
    const StatusCode code =
        done.code > 0 && done.code <= static_cast<uint8_t>(StatusCode::kInternal)
            ? static_cast<StatusCode>(done.code)
            : StatusCode::kInternal;
    return Status(code, fmt::format("prompt {}: {}", i + 1, done.message));
  }
  return OkStatus();
}

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "none";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "";
}

Generation RunRequests(Job& job, std::vector<SubmitRequest> requests, const GenerationSinks& sinks,
                       int64_t silence_ns) {
  Collector collector(requests.size(), sinks);
  Generation generation;
  const int64_t start_ns = NowNs();
  for (size_t i = 0; i < requests.size() && generation.status.ok(); ++i) {
    requests[i].request = i;
    generation.status = job.client().Submit(requests[i], Deadline::AfterMs(kSubmitMs));
  }
  if (generation.status.ok()) generation.status = Collect(job, silence_ns, &collector);
  generation.wall_ns = NowNs() - start_ns;
  if (generation.status.code() == StatusCode::kCancelled) {
    CancelAll(job, requests.size(), &collector);
  }
  generation.requests = collector.TakeOutcomes();
  return generation;
}

}  // namespace expertflow
