// Text from token ids as they are generated: only whole characters, so that nothing broken is
// printed between two tokens. One for each sequence; one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "model/tokenizer/tokenizer.h"

namespace expertflow {

class StreamDecoder {
 public:
  // REQUIRES: `tokenizer` outlives the decoder
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        spaces_to_drop_(tokenizer.leading_spaces_dropped()) {}

  // The characters that are complete with this token; at most 3 bytes wait for the next.
  std::string Push(int32_t id);

  // The end of the sequence: what still waits, as U+FFFD. All that Push() and Flush() returned,
  // joined, equals Tokenizer::Decode() of the same ids. The decoder is then as new.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  int32_t spaces_to_drop_;  // of what comes next, at the text's beginning
  std::string waiting_;     // the beginning of a character
};

}  // namespace expertflow
