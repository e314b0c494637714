// Any bytes as a tokenizer.json; what is accepted must encode, decode and stream any text. What
// follows a zero byte is the text.
#include <cstdlib>
#include <string>
#include <string_view>

#include "model/tokenizer/stream_decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace {

void EncodeAndDecode(const expertflow::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text);
  if (!ids.ok()) return;
  for (const int32_t id : *ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  }
  for (const bool skip_special : {false, true}) {
    expertflow::StreamDecoder decoder(tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : *ids) {
      const std::string part = decoder.Push(id);
      if (!expertflow::IsValidUtf8(part)) std::abort();
      streamed += part;
    }
    streamed += decoder.Flush();
    if (streamed != tokenizer.Decode(*ids, skip_special)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const auto tokenizer = expertflow::Tokenizer::Parse(input.substr(0, zero), "input");
  if (!tokenizer.ok()) return 0;
  if (zero != std::string_view::npos) EncodeAndDecode(**tokenizer, input.substr(zero + 1));
  EncodeAndDecode(**tokenizer, input.substr(0, 4096));
  return 0;
}
