// The JSON that completions and chats are answered with, whole or in pieces of a stream. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/messages.h"

namespace expertflow {

// What all pieces of an answer have in common.
struct AnswerHead {
  bool chat = false;
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON
};

struct AnswerChoice {
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::string logprobs_json = "null";
  // Of a chat. In a piece of a stream: those that come with it, the first being number
  // `tools_begin`.
  std::vector<ToolCall> tools = {};
  size_t tools_begin = 0;
};

struct AnswerUsage {
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;  // of those
  uint64_t completion_tokens = 0;
};

std::string AnswerJson(const AnswerHead& head, const std::vector<AnswerChoice>& choices,
                       const AnswerUsage& usage);

// Events of a stream: "data: {...}\n\n".
// `first`: of its choice; a chat's role comes with it.
std::string ChunkEvent(const AnswerHead& head, size_t index, const AnswerChoice& piece, bool first);
std::string UsageEvent(const AnswerHead& head, const AnswerUsage& usage);
std::string EventOf(std::string_view json);

}  // namespace expertflow
