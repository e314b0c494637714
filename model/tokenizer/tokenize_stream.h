// The `tokenize` command: JSON lines in, JSON lines out, one answer for each line.
//
//   {"text": "Hello"}   ->  {"ids":[9707]}
//   {"ids": [9707]}     ->  {"text":"Hello"}
#pragma once

#include <iosfwd>

#include "common/status.h"
#include "model/tokenizer/tokenizer.h"

namespace expertflow {

// Special tokens stay in decoded text. Each answer is flushed, so a program may hold a dialogue.
// Stops at the first bad line with an error that names its number; answers to the lines before it
// are written.
Status TokenizeStream(const Tokenizer& tokenizer, std::istream& in, std::ostream& out);

}  // namespace expertflow
