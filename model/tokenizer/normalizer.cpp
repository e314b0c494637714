#include "model/tokenizer/normalizer.h"

#include "model/tokenizer/nfc.h"
#include "model/tokenizer/utf8.h"

namespace expertflow {

Result<std::string_view> Normalizer::Apply(std::string_view text, std::string* owned) const {
  for (const auto& step : steps_) {
    std::string changed;
    if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (text.empty()) continue;
      changed.append(prepend->prefix).append(text);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      std::vector<Regex::Match> matches;
      RETURN_IF_ERROR(replace->pattern.FindAll(text, &matches));
      if (matches.empty()) continue;
      size_t done = 0;
      for (const Regex::Match& match : matches) {
        changed.append(text.substr(done, match.begin - done)).append(replace->content);
        done = match.end;
      }
      changed.append(text.substr(done));
    } else {
      if (IsAscii(text)) continue;
      ASSIGN_OR_RETURN(changed, NormalizeNfc(text));
    }
    *owned = std::move(changed);  // `text` may have pointed into it
    text = *owned;
  }
  return text;
}

}  // namespace expertflow
