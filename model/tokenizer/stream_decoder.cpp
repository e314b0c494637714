#include "model/tokenizer/stream_decoder.h"

#include <string_view>

#include "model/tokenizer/utf8.h"

namespace expertflow {

std::string StreamDecoder::Push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_.IsSpecial(id)) return text;
  waiting_.append(tokenizer_.TokenBytes(id));
  std::string_view rest = waiting_;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Kind::kCut) break;
    const bool whole = step.kind == Utf8Kind::kCharacter;
    text.append(whole ? rest.substr(0, step.bytes) : kReplacementCharacter);
    rest.remove_prefix(step.bytes);
  }
  waiting_.erase(0, waiting_.size() - rest.size());
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  AppendLossyUtf8(waiting_, &text);
  waiting_.clear();
  return text;
}

}  // namespace expertflow
