#include "serving/completion_text.h"

#include <fmt/format.h>

#include "serving/json_text.h"

namespace expertflow {
namespace {

std::string_view FinishJson(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop: return "\"stop\"";
    case FinishReason::kLength: return "\"length\"";
    default: return "null";
  }
}

std::string HeadJson(const AnswerHead& head, bool chunk) {
  const std::string_view object = !head.chat ? "text_completion"
                                  : chunk    ? "chat.completion.chunk"
                                             : "chat.completion";
  return fmt::format(R"("id":{},"object":"{}","created":{},"model":{})", JsonString(head.id),
                     object, head.created, JsonString(head.model));
}

// Nothing is shared between prompts yet, so no prompt token comes from a cache.
std::string UsageJson(const AnswerUsage& usage) {
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":0}}}})",
                     usage.prompt_tokens, usage.completion_tokens,
                     usage.prompt_tokens + usage.completion_tokens);
}

}  // namespace

std::string AnswerJson(const AnswerHead& head, const std::vector<AnswerChoice>& choices,
                       const AnswerUsage& usage) {
  std::string json = fmt::format("{{{},\"choices\":[", HeadJson(head, /*chunk=*/false));
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string text = JsonString(choices[i].text);
    json += fmt::format(
        R"({}{{"index":{},{},"logprobs":{},"finish_reason":{}}})", i == 0 ? "" : ",", i,
        head.chat ? R"("message":{"role":"assistant","content":)" + text + "}" : "\"text\":" + text,
        choices[i].logprobs_json, FinishJson(choices[i].finish));
  }
  return json + fmt::format("],\"usage\":{}}}", UsageJson(usage));
}

std::string ChunkEvent(const AnswerHead& head, size_t index, const AnswerChoice& piece,
                       bool first) {
  std::string content;
  if (!head.chat) {
    content = "\"text\":" + JsonString(piece.text);
  } else if (first) {
    content = R"("delta":{"role":"assistant","content":)" + JsonString(piece.text) + "}";
  } else if (piece.text.empty()) {
    content = "\"delta\":{}";
  } else {
    content = "\"delta\":{\"content\":" + JsonString(piece.text) + "}";
  }
  return EventOf(
      fmt::format(R"({{{},"choices":[{{"index":{},{},"logprobs":{},"finish_reason":{}}}]}})",
                  HeadJson(head, /*chunk=*/true), index, content, piece.logprobs_json,
                  FinishJson(piece.finish)));
}

std::string UsageEvent(const AnswerHead& head, const AnswerUsage& usage) {
  return EventOf(fmt::format(R"({{{},"choices":[],"usage":{}}})", HeadJson(head, /*chunk=*/true),
                             UsageJson(usage)));
}

std::string EventOf(std::string_view json) {
  return fmt::format("data: {}\n\n", json);
}

}  // namespace expertflow
