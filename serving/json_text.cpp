#include "serving/json_text.h"

#include <fmt/format.h>

#include "model/tokenizer/utf8.h"

namespace expertflow {

std::string JsonString(std::string_view text) {
  std::string valid;
  if (!IsValidUtf8(text)) {
    AppendLossyUtf8(text, &valid);
    text = valid;
  }
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
  return out;
}

}  // namespace expertflow
