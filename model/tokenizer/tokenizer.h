// Text to token ids and back, as the Hugging Face tokenizer.json says: BPE, byte-level or with byte
// fallback, with the file's own normalizer, pre-tokenizer and added tokens. Ids equal the reference
// library's.
//
// Immutable after loading, so any number of threads may share one. Nothing is cached beyond a call:
// memory does not grow with use. Text that is not valid UTF-8 is read with U+FFFD for each broken
// part.
//
// The folder: utf8, nfc, normalizer, byte_alphabet (characters), regex_syntax, regex, pre_tokenizer
// (cutting), added_tokens, vocabulary, bpe (ids), tokenizer_json (the file), stream_decoder (text
// as it comes) and tokenize_stream (the `tokenize` command).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace expertflow {

// Which tokens stand around a text that stands alone, where something else than tokenizer.json says
// it (add_bos_token of tokenizer_config.json). Empty: none. Absent: what the file says.
struct PromptTokens {
  std::optional<std::string> before;
  std::optional<std::string> after;
};

class Tokenizer {
 public:
  // Of one Encode() call.
  static constexpr size_t kTextBytesMax = size_t{64} << 20;

  // Errors are one line that names the file and what is wrong or not supported in it.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  static Result<std::unique_ptr<Tokenizer>> Parse(std::string_view json,
                                                  std::string name_for_errors,
                                                  const PromptTokens& prompt = {});
  ~Tokenizer();

  // Added and special tokens in the text are recognised; none are added. Errors: the text is larger
  // than kTextBytesMax, has a byte that no token stands for, or makes a regex give up.
  Result<std::vector<int32_t>> Encode(std::string_view text) const;

  // The same with what the file's post-processor puts around a text that stands alone ("<s>").
  Result<std::vector<int32_t>> EncodePrompt(std::string_view text) const;

  // Well-formed UTF-8; bytes that form no character become U+FFFD. Unknown ids give nothing.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // Of a decoded text at most so many spaces at its beginning are left out.
  int32_t leading_spaces_dropped() const;

  // The bytes that a token stands for, which may end inside a character; empty for unknown ids.
  // Valid as long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // The largest id + 1, added tokens included.
  int32_t vocab_size() const;
  // By the content that the file has: "<|im_end|>", "Ġthe".
  std::optional<int32_t> TokenToId(std::string_view content) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  const std::unique_ptr<const Parts> parts_;
};

}  // namespace expertflow
