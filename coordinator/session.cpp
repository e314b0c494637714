#include "coordinator/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace expertflow {

StopFilter::StopFilter(std::vector<std::string> stop) : stop_(std::move(stop)) {
  std::erase_if(stop_, [](const std::string& text) { return text.empty(); });
}

std::string StopFilter::Push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  // The one that is complete first, wherever the text was cut; the longest of those.
  size_t begin = std::string::npos;
  size_t end = std::string::npos;
  for (const std::string& stop : stop_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (std::pair(at + stop.size(), at) < std::pair(end, begin)) {
      begin = at;
      end = at + stop.size();
    }
  }
  if (begin != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, begin);
    held_.clear();
    return shown;
  }
  // Hold back the longest end that could begin a stop string.
  size_t keep = 0;
  for (const std::string& stop : stop_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopFilter::Flush() {
  return std::exchange(held_, "");
}

Session::Session(SequenceId sequence, const SubmitRequest& request, const Tokenizer& tokenizer)
    : sequence_(sequence),
      request_(request),
      decoder_(tokenizer, /*skip_special=*/true),
      stop_(request.stop) {}

Result<Session> Session::Create(SequenceId sequence, const SubmitRequest& request,
                                const Tokenizer& tokenizer, int64_t vocab, int64_t context,
                                const std::vector<int32_t>& eos, int64_t now_ns) {
  Session session(sequence, request, tokenizer);
  session.submitted_ns_ = now_ns;
  if (request.is_text) {
    ASSIGN_OR_RETURN(session.tokens_, tokenizer.EncodePrompt(request.text));
  } else {
    session.tokens_ = request.tokens;
  }
  const auto prompt = static_cast<int64_t>(session.tokens_.size());
  if (prompt == 0) return InvalidArgument("the prompt is empty; it needs at least one token");
  for (const int32_t token : session.tokens_) {
    if (token < 0 || token >= vocab) {
      return InvalidArgument(
          fmt::format("token id {} is outside the model's vocabulary of {}", token, vocab));
    }
  }
  if (prompt > context) {
    return InvalidArgument(
        fmt::format("the prompt has {} tokens, the model's context is {}; shorten the prompt",
                    prompt, context));
  }
  if (request.max_new_tokens == 0) {
    return InvalidArgument("max_tokens is 0; ask for at least one token");
  }
  if (std::abs(int64_t{request.priority}) > kPriorityMost) {
    return InvalidArgument(fmt::format("priority {}: expected {} to {}", request.priority,
                                       -kPriorityMost, kPriorityMost));
  }
  session.prompt_tokens_ = static_cast<uint32_t>(prompt);
  // The last token is never fed back, so it needs no position.
  session.max_new_tokens_ =
      static_cast<uint32_t>(std::min<int64_t>(request.max_new_tokens, context - prompt + 1));
  if (!request.ignore_eos) session.stop_tokens_ = eos;
  // The logits after a position are those of the next token.
  const bool whole = request.capture_logits || request.capture_routes || request.prompt_logprobs;
  session.next_captured_ = whole ? 0 : session.prompt_tokens_ - 1;
  return session;
}

StartSequence Session::Start() const {
  StartSequence start;
  start.sequence = sequence_;
  start.tokens = tokens_;
  start.prompt_tokens = prompt_tokens_;
  start.max_new_tokens = max_new_tokens_;
  start.rank = rank();
  start.sampling = request_.sampling;
  start.stop_tokens = stop_tokens_;
  start.grammar = request_.grammar;
  start.trace_id = request_.trace_id;
  start.capture_logits = request_.capture_logits;
  start.capture_routes = request_.capture_routes;
  start.capture_logprobs = request_.logprobs;
  start.capture_from = next_captured_;
  return start;
}

Result<Session::Progress> Session::OnToken(const TokenEvent& event, int64_t now_ns) {
  Progress progress;
  progress.delta.request = request_.request;
  if (event.position < tokens_.size()) return progress;
  if (event.position > tokens_.size()) {
    return Internal(
        fmt::format("token for position {} came where {} was due", event.position, tokens_.size()));
  }
  if (event.finish == FinishReason::kCancelled || event.finish == FinishReason::kError) {
    return Internal(
        fmt::format("token for position {} came with an end that is no token's", event.position));
  }
  if (generated() == 0) first_token_ns_ = now_ns;
  last_token_ns_ = now_ns;
  tokens_.push_back(event.token);
  progress.delta.tokens.push_back(event.token);
  progress.finish = event.finish;
  if (progress.finish == FinishReason::kNone && generated() == max_new_tokens_) {
    progress.finish = FinishReason::kLength;
  }
  progress.delta.text = stop_.Push(decoder_.Push(event.token));
  if (progress.finish != FinishReason::kNone) progress.delta.text += TakeRest();
  if (stop_.stopped()) progress.finish = FinishReason::kStop;
  return progress;
}

void Session::OnPromptDone(const PromptDone& prompt) {
  if (generated() == 0) cached_tokens_ = std::min(prompt.cached_tokens, prompt_tokens_);
}

std::string Session::TakeRest() {
  const std::string last = stop_.Push(decoder_.Flush());
  return last + stop_.Flush();
}

Result<bool> Session::OnCaptured(uint32_t position) {
  if (position < next_captured_) return false;
  if (position > next_captured_) {
    return Internal(
        fmt::format("capture of position {} came where {} was due", position, next_captured_));
  }
  ++next_captured_;
  return true;
}

RequestDone Session::Done(FinishReason finish, const Status& status, int64_t now_ns) const {
  RequestDone done;
  done.request = request_.request;
  done.finish = finish;
  done.code = static_cast<uint8_t>(status.code());
  done.message = status.message();
  done.prompt_tokens = prompt_tokens_;
  done.cached_tokens = cached_tokens_;
  done.generated_tokens = generated();
  done.ttft_ns = generated() > 0 ? first_token_ns_ - submitted_ns_ : 0;
  done.total_ns = (generated() > 0 ? last_token_ns_ : now_ns) - submitted_ns_;
  done.requeues = requeues_;
  return done;
}

}  // namespace expertflow
