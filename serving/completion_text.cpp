#include "serving/completion_text.h"

#include <fmt/format.h>

#include "serving/json_text.h"

namespace expertflow {
namespace {

std::string_view FinishJson(const AnswerChoice& choice) {
  switch (choice.finish) {
    case FinishReason::kStop:
      return choice.tools.empty() && choice.tools_begin == 0 ? "\"stop\"" : "\"tool_calls\"";
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

// `index`: in a stream each call says which one it is.
std::string ToolsJson(const AnswerChoice& choice, bool index) {
  std::string json;
  for (size_t i = 0; i < choice.tools.size(); ++i) {
    const ToolCall& call = choice.tools[i];
    json += fmt::format(
        R"({}{{{}"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
        i == 0 ? "" : ",", index ? fmt::format("\"index\":{},", choice.tools_begin + i) : "",
        JsonString(call.id), JsonString(call.name), JsonString(call.arguments));
  }
  return "\"tool_calls\":[" + json + "]";
}

std::string MessageJson(const AnswerChoice& choice) {
  const bool bare = choice.text.empty() && !choice.tools.empty();
  return fmt::format(R"("message":{{"role":"assistant","content":{}{}}})",
                     bare ? "null" : JsonString(choice.text),
                     choice.tools.empty() ? "" : "," + ToolsJson(choice, /*index=*/false));
}

std::string DeltaJson(const AnswerChoice& piece, bool first) {
  std::string fields = first ? R"("role":"assistant")" : "";
  if (first || !piece.text.empty()) {
    fields += (fields.empty() ? "" : ",") + ("\"content\":" + JsonString(piece.text));
  }
  if (!piece.tools.empty()) {
    fields += (fields.empty() ? "" : ",") + ToolsJson(piece, /*index=*/true);
  }
  return "\"delta\":{" + fields + "}";
}

std::string UsageJson(const AnswerUsage& usage) {
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                     usage.prompt_tokens, usage.completion_tokens,
                     usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
}

}  // namespace

std::string AnswerJson(const AnswerHead& head, const std::vector<AnswerChoice>& choices,
                       const AnswerUsage& usage) {
  std::string json = fmt::format("{{{},\"choices\":[", HeadJson(head, /*chunk=*/false));
  for (size_t i = 0; i < choices.size(); ++i) {
    const AnswerChoice& choice = choices[i];
    json +=
        fmt::format(R"({}{{"index":{},{},"logprobs":{},"finish_reason":{}}})", i == 0 ? "" : ",", i,
                    head.chat ? MessageJson(choice) : "\"text\":" + JsonString(choice.text),
                    choice.logprobs_json, FinishJson(choice));
  }
  return json + fmt::format("],\"usage\":{}}}", UsageJson(usage));
}

std::string ChunkEvent(const AnswerHead& head, size_t index, const AnswerChoice& piece,
                       bool first) {
  return EventOf(
      fmt::format(R"({{{},"choices":[{{"index":{},{},"logprobs":{},"finish_reason":{}}}]}})",
                  HeadJson(head, /*chunk=*/true), index,
                  head.chat ? DeltaJson(piece, first) : "\"text\":" + JsonString(piece.text),
                  piece.logprobs_json, FinishJson(piece)));
}

std::string UsageEvent(const AnswerHead& head, const AnswerUsage& usage) {
  return EventOf(fmt::format(R"({{{},"choices":[],"usage":{}}})", HeadJson(head, /*chunk=*/true),
                             UsageJson(usage)));
}

std::string EventOf(std::string_view json) {
  return fmt::format("data: {}\n\n", json);
}

}  // namespace expertflow
