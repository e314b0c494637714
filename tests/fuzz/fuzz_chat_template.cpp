// Any bytes as a chat template, rendered with a chat; what follows a zero byte are the variables
// instead. Whatever a template does, it ends, and makes a bounded text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "serving/chat_template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kChat =
      R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,
          "tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}],
          "tools":[{"type":"function","function":{"name":"f"}}],"add_generation_prompt":true,
          "bos_token":"<s>"})";
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const auto chat = expertflow::ChatTemplate::Parse(input.substr(0, zero), "input");
  if (!chat.ok()) return 0;
  const std::string_view variables =
      zero == std::string_view::npos ? kChat : input.substr(zero + 1);
  const auto text = chat->Render(variables, 1'700'000'000);
  if (text.ok() && text->size() > (size_t{17} << 20)) std::abort();
  return 0;
}
