// From the regex syntax of tokenizer.json files (Oniguruma) to PCRE2.
//
// The two agree on most of what pre-tokenizers use. Where they differ, the pattern is rewritten
// (`\s`, `\w`, `\h`, `\v`, `\b`, `\uHHHH`, `{,n}`, scripts in `\p{..}`), and what cannot be
// rewritten is refused by name: a pattern is never run with another meaning.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace expertflow {

Result<std::string> TranslateRegex(std::string_view pattern);

}  // namespace expertflow
