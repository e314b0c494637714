// One request from submission to its end: tokens in order, text in whole characters, stop strings
// that never leak. Knows nothing of workers or sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/stream_decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "transport/messages.h"

namespace expertflow {

// Text that is given out except for what could be the start of a stop string.
class StopFilter {
 public:
  // Empty strings are ignored.
  explicit StopFilter(std::vector<std::string> stop);

  // What may be shown now. After a stop string was completed, nothing follows.
  std::string Push(std::string_view text);
  // What was held back, at the end of generation.
  std::string Flush();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

// A request is ranked by when it came, and this much later or earlier for each step of its
// priority: nobody waits for long because of those that come after it.
inline constexpr int64_t kPriorityStepNs = 10'000'000'000;

class Session {
 public:
  // `context`: positions that a sequence may have. An error is the client's: no prompt, ids outside
  // the vocabulary, a prompt that does not fit.
  static Result<Session> Create(SequenceId sequence, const SubmitRequest& request,
                                const Tokenizer& tokenizer, int64_t vocab, int64_t context,
                                const std::vector<int32_t>& eos, int64_t now_ns);

  // The sequence as a worker gets it, with all tokens so far.
  StartSequence Start() const;

  struct Progress {
    TextDelta delta;                            // request, text, tokens; may be empty
    FinishReason finish = FinishReason::kNone;  // kStop and kLength end the request
  };
  // A token that the worker reports. One that is known already (a re-queued sequence) gives
  // nothing; a gap is an error.
  Result<Progress> OnToken(const TokenEvent& event, int64_t now_ns);
  void OnPromptDone(const PromptDone& prompt);
  // False when this position was delivered before; a gap is an error.
  Result<bool> OnCaptured(uint32_t position);
  // Text that is still held back, for a request that ends before its last token.
  std::string TakeRest();
  void OnRequeued() { ++requeues_; }

  RequestDone Done(FinishReason finish, const Status& status, int64_t now_ns) const;

  SequenceId sequence() const { return sequence_; }
  uint32_t requeues() const { return requeues_; }
  uint64_t request() const { return request_.request; }
  int64_t submitted_ns() const { return submitted_ns_; }
  // The lower goes first.
  int64_t rank() const { return submitted_ns_ + request_.priority * kPriorityStepNs; }
  // Prompt and generated.
  std::span<const int32_t> tokens() const { return tokens_; }
  uint32_t generated() const { return static_cast<uint32_t>(tokens_.size()) - prompt_tokens_; }

 private:
  Session(SequenceId sequence, const SubmitRequest& request, const Tokenizer& tokenizer);

  SequenceId sequence_;
  SubmitRequest request_;
  std::vector<int32_t> tokens_;  // prompt and generated
  uint32_t prompt_tokens_ = 0;
  uint32_t cached_tokens_ = 0;  // of the prompt
  uint32_t max_new_tokens_ = 0;
  std::vector<int32_t> stop_tokens_;
  StreamDecoder decoder_;
  StopFilter stop_;
  uint32_t next_captured_ = 0;
  uint32_t requeues_ = 0;
  int64_t submitted_ns_ = 0;
  int64_t first_token_ns_ = 0;
  int64_t last_token_ns_ = 0;
};

}  // namespace expertflow
