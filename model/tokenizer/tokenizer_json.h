// Reads a Hugging Face tokenizer.json of a BPE family: byte-level, or text with byte fallback as
// converted from SentencePiece.
//
// What the reader knows is honoured, everything else that could change ids is refused with a line
// that names the file and the thing. Only truncation and padding are left unread: the caller
// decides how long a prompt may be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer.h"

namespace expertflow {

struct TokenizerDefinition {
  Bpe bpe;                               // its vocabulary includes the added tokens
  std::vector<AddedToken> added_tokens;  // in the file's order
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  int32_t leading_spaces_dropped = 0;  // at most, of decoded text
  // What the post-processor puts around a text that stands alone.
  std::vector<int32_t> prompt_prefix;
  std::vector<int32_t> prompt_suffix;
};

// Errors begin with `name`, the file that the user knows.
Result<TokenizerDefinition> ParseTokenizerJson(std::string_view json, const std::string& name);

}  // namespace expertflow
