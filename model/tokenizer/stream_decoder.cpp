#include "model/tokenizer/stream_decoder.h"

#include <string_view>

#include "model/tokenizer/utf8.h"

namespace expertflow {

std::string StreamDecoder::Push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_.IsSpecial(id)) return text;
  std::string_view bytes = tokenizer_.TokenBytes(id);
  while (spaces_to_drop_ > 0 && !bytes.empty()) {
    if (bytes.front() != ' ') {
      spaces_to_drop_ = 0;
      break;
    }
    --spaces_to_drop_;
    bytes.remove_prefix(1);
  }
  waiting_.append(bytes);
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
  spaces_to_drop_ = tokenizer_.leading_spaces_dropped();
  return text;
}

}  // namespace expertflow
