// The log probabilities of one choice's tokens, as answers show them. They come with the tokens and
// are given out with the text: a token whose text is held back, as it may begin a stop string, is
// held back too, and a stop string that was found shows nowhere. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer/stream_decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "transport/messages.h"

namespace expertflow {

class TokenLogprobs {
 public:
  // `chat`: which of the two shapes. `echo`: the prompt, when it is part of the text; then its
  // tokens' log probabilities come first, but for the first token, which has none.
  // REQUIRES: `tokenizer` outlives it
  TokenLogprobs(const Tokenizer& tokenizer, bool chat, std::span<const int32_t> echo);

  // As in CapturedPosition: the token, then the likeliest ones.
  void Add(const std::vector<TokenLogprob>& logprobs);

  // JSON of the tokens that are not given out yet and whose text has begun before the first
  // `text_bytes` of generated text; "null" when there are none.
  std::string Take(int64_t text_bytes);
  // The same at the end of the text, where tokens without a text belong to it.
  std::string TakeLast(int64_t text_bytes, FinishReason finish);

 private:
  struct Entry {
    std::vector<TokenLogprob> logprobs;  // with one element for a token without
    bool known = true;                   // false: the first token of a prompt
    int64_t begin = -1;                  // byte of the generated text; -1 in a prompt
    bool has_text = true;
    int64_t offset = 0;  // character of the whole text
  };

  void Append(Entry entry);
  std::string Json(const std::vector<Entry>& entries) const;
  std::string CompletionJson(const std::vector<Entry>& entries) const;
  std::string ChatJson(const std::vector<Entry>& entries) const;
  std::string TokenText(int32_t token) const;

  const Tokenizer& tokenizer_;
  const bool chat_;
  size_t prompt_left_ = 0;  // tokens of the echoed prompt that are to come
  StreamDecoder prompt_decoder_;
  StreamDecoder decoder_;
  std::deque<Entry> waiting_;
  int64_t text_bytes_ = 0;  // of the generated text, as decoded so far
  int64_t characters_ = 0;
};

}  // namespace expertflow
