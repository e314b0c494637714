#include "serving/json_text.h"

#include "common/json_string.h"
#include "model/tokenizer/utf8.h"

namespace expertflow {

std::string JsonString(std::string_view text) {
  if (IsValidUtf8(text)) return JsonQuoted(text);
  std::string valid;
  AppendLossyUtf8(text, &valid);
  return JsonQuoted(valid);
}

}  // namespace expertflow
