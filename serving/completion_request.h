// The body of /v1/completions, /v1/chat/completions, /tokenize and /detokenize: parsed and checked,
// whatever it is. Fields that nobody knows are ignored as OpenAI does; fields that we know and do
// not support are refused by name. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serving/api_error.h"
#include "transport/messages.h"

namespace expertflow {

struct CompletionRequest {
  static constexpr int64_t kChoicesMax = 128;  // prompts times n

  using Prompt = std::variant<std::string, std::vector<int32_t>>;

  std::string model;                   // empty: whatever is served
  std::vector<Prompt> prompts;         // of a completion; not empty
  std::string chat_json;               // of a chat: the variables of the template; else empty
  int32_t priority = 0;                // the lower goes first
  std::optional<uint32_t> max_tokens;  // 0: of a completion with echo, which shows the prompt only
  SamplingParams sampling = {.temperature = 1};
  bool has_seed = false;
  std::string grammar;     // that the text must follow (model/grammar); empty: none
  bool has_tools = false;  // the template gets tools, and calls are taken out of the text
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool echo = false;
  int32_t logprobs = -1;  // how many of the likeliest tokens, too; -1: no log probabilities
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;  // in a stream
};

// Nothing, and `request` is set; or what is wrong.
std::optional<ApiError> ParseCompletionRequest(std::string_view body, CompletionRequest* request);
// `variables_json`: an object with what the template gets beside the messages.
std::optional<ApiError> ParseChatRequest(std::string_view body, std::string_view variables_json,
                                         CompletionRequest* request);

struct TokenizeRequest {
  std::string model;
  std::string text;
  std::string chat_json;           // of a chat: the variables of the template; else empty
  bool add_special_tokens = true;  // what stands around a text alone; a template has its own
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

std::optional<ApiError> ParseTokenizeRequest(std::string_view body, std::string_view variables_json,
                                             TokenizeRequest* request);
std::optional<ApiError> ParseDetokenizeRequest(std::string_view body, DetokenizeRequest* request);

struct ConfigChange {
  std::optional<int64_t> rate_limit;  // requests a minute
  bool reload_keys = false;
  bool reload_certificate = false;
};

// Here a field that nobody knows is an error.
std::optional<ApiError> ParseConfigChange(std::string_view body, ConfigChange* change);

}  // namespace expertflow
