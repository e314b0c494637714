#include "serving/completion_request.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/json_string.h"
#include "serving/answer_form.h"
#include "serving/request_fields.h"

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;  // a template may print it

constexpr int64_t kTokensMax = 1 << 30;
constexpr size_t kStopStringsMax = 16;
constexpr size_t kStopBytesMax = 4096;
constexpr size_t kLogitBiasMax = 4096;
constexpr int64_t kLogprobsMax = 20;
constexpr int kArgumentsDepthMax = 50;

// --- prompts -----------------------------------------------------------------------------------

std::optional<ApiError> ReadIds(const char* param, const Json& list, std::vector<int32_t>* ids) {
  ids->reserve(list.size());
  for (const Json& id : list) {
    const std::optional<int64_t> number = WholeNumber(id);
    if (!number || *number < 0 || *number > INT32_MAX) {
      return BadParameter(param, fmt::format("{}: expected token ids, integers from 0, found {}",
                                             param, ShortJson(id)));
    }
    ids->push_back(static_cast<int32_t>(*number));
  }
  return std::nullopt;
}

std::optional<ApiError> ReadPrompt(const Json& json, CompletionRequest::Prompt* prompt) {
  if (json.is_string()) {
    *prompt = json.get<std::string>();
    if (std::get<std::string>(*prompt).empty()) {
      return BadParameter("prompt", "prompt: expected some text, found none");
    }
    return std::nullopt;
  }
  if (!json.is_array() || json.empty()) {
    return BadParameter("prompt",
                        fmt::format("prompt: expected text, a list of token ids, or a list of "
                                    "either, found {}",
                                    ShortJson(json)));
  }
  return ReadIds("prompt", json, &prompt->emplace<std::vector<int32_t>>());
}

std::optional<ApiError> ReadPrompts(const Json& body, CompletionRequest* request) {
  const auto prompt = body.find("prompt");
  if (prompt == body.end()) return BadParameter("prompt", "prompt: it is missing");
  const bool many = prompt->is_array() && !prompt->empty() &&
                    (prompt->front().is_string() || prompt->front().is_array());
  if (!many) return ReadPrompt(*prompt, &request->prompts.emplace_back());
  if (prompt->size() > static_cast<size_t>(CompletionRequest::kChoicesMax)) {
    return BadParameter("prompt", fmt::format("prompt: at most {} prompts at once, found {}",
                                              CompletionRequest::kChoicesMax, prompt->size()));
  }
  for (const Json& one : *prompt) {
    if (auto error = ReadPrompt(one, &request->prompts.emplace_back())) return error;
  }
  return std::nullopt;
}

// --- everything else ---------------------------------------------------------------------------

std::optional<ApiError> ReadFloat(const RequestFields& fields, const char* name, double min,
                                  double max, float* value) {
  double number = static_cast<double>(*value);
  if (auto error = fields.Number(name, min, max, &number)) return error;
  *value = static_cast<float>(number);
  return std::nullopt;
}

// {"token id": bias}
std::optional<ApiError> ReadLogitBias(const RequestFields& fields, std::vector<LogitBias>* biases) {
  const Json* object = fields.Find("logit_bias");
  if (object == nullptr) return std::nullopt;
  if (!object->is_object() || object->size() > kLogitBiasMax) {
    return BadParameter("logit_bias",
                        fmt::format("logit_bias: expected an object of at most {} token ids, "
                                    "found {}",
                                    kLogitBiasMax, ShortJson(*object)));
  }
  for (const auto& [id, bias] : object->items()) {
    LogitBias one;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), one.token);
    const double number = bias.is_number() ? bias.get<double>() : 1000;
    if (error != std::errc() || end != id.data() + id.size() || one.token < 0 ||
        std::abs(number) > 100) {
      return BadParameter("logit_bias", fmt::format("logit_bias: expected a token id and a number "
                                                    "from -100 to 100, found {}: {}",
                                                    ShortJson(id), ShortJson(bias)));
    }
    one.bias = static_cast<float>(number);
    biases->push_back(one);
  }
  return std::nullopt;
}

std::optional<ApiError> ReadSampling(const RequestFields& fields, CompletionRequest* request) {
  SamplingParams& sampling = request->sampling;
  int64_t top_k = 0;
  int64_t seed = 0;
  if (auto error = ReadFloat(fields, "temperature", 0, 2, &sampling.temperature)) return error;
  if (auto error = ReadFloat(fields, "top_p", 0, 1, &sampling.top_p)) return error;
  if (auto error = ReadFloat(fields, "min_p", 0, 1, &sampling.min_p)) return error;
  if (auto error =
          ReadFloat(fields, "repetition_penalty", 0.01, 100, &sampling.repetition_penalty)) {
    return error;
  }
  if (auto error = ReadFloat(fields, "frequency_penalty", -2, 2, &sampling.frequency_penalty)) {
    return error;
  }
  if (auto error = ReadFloat(fields, "presence_penalty", -2, 2, &sampling.presence_penalty)) {
    return error;
  }
  if (auto error = ReadLogitBias(fields, &sampling.logit_bias)) return error;
  if (auto error = fields.Integer("top_k", -1, 1'000'000, &top_k)) return error;
  if (auto error = fields.Integer("seed", std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<int64_t>::max(), &seed)) {
    return error;
  }
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  sampling.seed = static_cast<uint64_t>(seed);
  request->has_seed = fields.Has("seed");
  return std::nullopt;
}

std::optional<ApiError> ReadStop(const RequestFields& fields, CompletionRequest* request) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) return std::nullopt;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kStopStringsMax) {
    return BadParameter(
        "stop", fmt::format("stop: at most {} strings, found {}", kStopStringsMax, list.size()));
  }
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > kStopBytesMax) {
      return BadParameter("stop", fmt::format("stop: expected strings of 1 to {} bytes, found {}",
                                              kStopBytesMax, ShortJson(text)));
    }
    request->stop.push_back(text.get<std::string>());
  }
  return std::nullopt;
}

std::optional<ApiError> ReadLengths(const RequestFields& fields, CompletionRequest* request) {
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    int64_t tokens = -1;
    if (auto error = fields.Integer(name, request->echo ? 0 : 1, kTokensMax, &tokens)) {
      return error;
    }
    if (tokens >= 0) request->max_tokens = static_cast<uint32_t>(tokens);
  }
  int64_t n = 1;
  if (auto error = fields.Integer("n", 1, CompletionRequest::kChoicesMax, &n)) return error;
  request->n = static_cast<int32_t>(n);
  return std::nullopt;
}

// A completion asks for a number of tokens, a chat for a flag and a number.
std::optional<ApiError> ReadLogprobs(const RequestFields& fields, bool chat, int32_t* logprobs) {
  int64_t count = -1;
  if (!chat) {
    const Json* field = fields.Find("logprobs");
    if (field != nullptr && *field == false) return std::nullopt;
    if (auto error = fields.Integer("logprobs", 0, kLogprobsMax, &count)) return error;
  } else {
    bool wanted = false;
    if (auto error = fields.Flag("logprobs", &wanted)) return error;
    if (auto error = fields.Integer("top_logprobs", 0, kLogprobsMax, &count)) return error;
    if (!wanted && count > 0) {
      return BadParameter("top_logprobs", "top_logprobs: needs \"logprobs\": true");
    }
    count = wanted ? std::max<int64_t>(count, 0) : -1;
  }
  *logprobs = static_cast<int32_t>(count);
  return std::nullopt;
}

std::optional<ApiError> ReadStreaming(const RequestFields& fields, CompletionRequest* request) {
  if (auto error = fields.Flag("stream", &request->stream)) return error;
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return std::nullopt;
  if (!request->stream || !options->is_object()) {
    return BadParameter("stream_options",
                        "stream_options: expected an object, together with \"stream\": true");
  }
  return RequestFields(*options, "stream_options.").Flag("include_usage", &request->include_usage);
}

// Known parameters that change the output, at values that would: the values here change nothing.
std::optional<ApiError> RefuseUnsupported(const RequestFields& fields, int32_t n) {
  static const std::array<std::pair<const char*, std::vector<Json>>, 8> kHarmless = {{
      {"prompt_logprobs", {}},
      {"suffix", {""}},
      {"functions", {Json::array()}},
      {"function_call", {"none", "auto"}},
      {"modalities", {Json::array({"text"})}},
      {"audio", {}},
      {"min_tokens", {0}},
      {"use_beam_search", {false}},
  }};
  for (const auto& [name, harmless] : kHarmless) {
    const Json* value = fields.Find(name);
    if (value == nullptr || std::find(harmless.begin(), harmless.end(), *value) != harmless.end()) {
      continue;
    }
    ApiError error = BadParameter(
        name, fmt::format("{}: not supported by this server, found {}", name, ShortJson(*value)));
    error.code = "unsupported_parameter";
    return error;
  }
  const Json* best_of = fields.Find("best_of");
  if (best_of != nullptr && *best_of != n) {
    return BadParameter("best_of", "best_of: only the value of n is supported");
  }
  return std::nullopt;
}

// --- chats -------------------------------------------------------------------------------------

// A text, or a list of texts, which become one with line breaks between them.
std::optional<ApiError> FlattenContent(const std::string& where, Json* content) {
  if (content->is_string() || content->is_null()) return std::nullopt;
  if (!content->is_array()) {
    return BadParameter(where, fmt::format("{}: expected text or a list of parts, found {}", where,
                                           ShortJson(*content)));
  }
  std::string text;
  for (const Json& part : *content) {
    const bool is_text = part.is_object() && part.value("type", Json()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      return BadParameter(where, fmt::format("{}: only parts of type text are supported, found {}",
                                             where, ShortJson(part)));
    }
    text += (&part == &content->front() ? "" : "\n") + part["text"].get<std::string>();
  }
  *content = std::move(text);
  return std::nullopt;
}

// Templates want a call's arguments as an object; clients send them as text.
void OpenArguments(Json* message) {
  const auto calls = message->find("tool_calls");
  if (calls == message->end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    Json& function = call["function"];
    const auto arguments = function.find("arguments");
    if (arguments == function.end() || !arguments->is_string()) continue;
    const auto& text = arguments->get_ref<const std::string&>();
    if (JsonNestsDeeper(text, kArgumentsDepthMax)) continue;
    Json opened = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (opened.is_object()) *arguments = std::move(opened);
  }
}

// `tools`: for the template; may be null.
std::optional<ApiError> ReadMessages(const Json& body, std::string_view variables_json,
                                     const Json* tools, std::string* chat_json) {
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array() || messages->empty()) {
    return BadParameter("messages", "messages: expected a list of at least one message");
  }
  Json variables = Json::parse(variables_json);
  Json list = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    Json message = (*messages)[i];
    const std::string where = fmt::format("messages[{}]", i);
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return BadParameter(where, fmt::format("{}: expected an object with a role, found {}", where,
                                             ShortJson(message)));
    }
    if (message.contains("content")) {
      if (auto error = FlattenContent(where + ".content", &message["content"])) return error;
    } else if (!message.contains("tool_calls")) {
      return BadParameter(where, where + ": content: it is missing");
    }
    OpenArguments(&message);
    list.push_back(std::move(message));
  }
  variables["messages"] = std::move(list);
  if (tools != nullptr) variables["tools"] = *tools;
  const RequestFields fields(body, "");
  bool add_generation_prompt = true;
  if (auto error = fields.Flag("add_generation_prompt", &add_generation_prompt)) return error;
  variables["add_generation_prompt"] = add_generation_prompt;
  if (const Json* more = fields.Find("chat_template_kwargs")) {
    if (!more->is_object()) {
      return BadParameter("chat_template_kwargs",
                          "chat_template_kwargs: expected an object, found " + ShortJson(*more));
    }
    for (const auto& [name, value] : more->items()) variables[name] = value;
  }
  *chat_json = variables.dump();
  return std::nullopt;
}

// A text of a grammar has its end there.
std::optional<ApiError> CheckEnd(const CompletionRequest& request) {
  if (request.grammar.empty() || !request.ignore_eos) return std::nullopt;
  return BadParameter("ignore_eos", "ignore_eos: not together with a response_format or a call");
}

// What completions and chats have in common.
std::optional<ApiError> ReadCommon(const Json& json, CompletionRequest* request) {
  const RequestFields fields(json, "");
  if (auto error = fields.Text("model", &request->model)) return error;
  if (auto error = ReadSampling(fields, request)) return error;
  if (auto error = ReadStop(fields, request)) return error;
  if (auto error = ReadLengths(fields, request)) return error;
  if (auto error = ReadStreaming(fields, request)) return error;
  if (auto error = fields.Flag("ignore_eos", &request->ignore_eos)) return error;
  int64_t priority = 0;
  if (auto error = fields.Integer("priority", -kPriorityMost, kPriorityMost, &priority)) {
    return error;
  }
  request->priority = static_cast<int32_t>(priority);
  if (auto error = ReadResponseFormat(fields, &request->grammar)) return error;
  if (auto error = CheckEnd(*request)) return error;
  return RefuseUnsupported(fields, request->n);
}

}  // namespace

std::optional<ApiError> ParseCompletionRequest(std::string_view body, CompletionRequest* request) {
  *request = {};
  Json json;
  if (auto error = ParseRequestBody(body, &json)) return error;
  if (auto error = ReadPrompts(json, request)) return error;
  const RequestFields fields(json, "");
  if (auto error = fields.Flag("echo", &request->echo)) return error;
  if (const Json* tools = fields.Find("tools"); tools != nullptr && *tools != Json::array()) {
    return BadParameter("tools", "tools: only chats have them");
  }
  if (auto error = ReadLogprobs(fields, /*chat=*/false, &request->logprobs)) return error;
  if (auto error = ReadCommon(json, request)) return error;
  if (static_cast<int64_t>(request->prompts.size()) * request->n > CompletionRequest::kChoicesMax) {
    return BadParameter(
        "n", fmt::format("n: {} prompts times {} are more than {} choices", request->prompts.size(),
                         request->n, CompletionRequest::kChoicesMax));
  }
  return std::nullopt;
}

std::optional<ApiError> ParseChatRequest(std::string_view body, std::string_view variables_json,
                                         CompletionRequest* request) {
  *request = {};
  Json json;
  if (auto error = ParseRequestBody(body, &json)) return error;
  const RequestFields fields(json, "");
  ToolOptions tools;
  if (auto error = ReadTools(fields, &tools)) return error;
  request->has_tools = tools.tools != nullptr;
  if (auto error = ReadMessages(json, variables_json, tools.tools, &request->chat_json)) {
    return error;
  }
  if (auto error = ReadLogprobs(fields, /*chat=*/true, &request->logprobs)) return error;
  if (auto error = ReadCommon(json, request)) return error;
  if (tools.grammar.empty()) return std::nullopt;
  if (!request->grammar.empty()) {
    return BadParameter("response_format",
                        "response_format: not together with a tool_choice that demands a call");
  }
  request->grammar = std::move(tools.grammar);
  return CheckEnd(*request);
}

std::optional<ApiError> ParseTokenizeRequest(std::string_view body, std::string_view variables_json,
                                             TokenizeRequest* request) {
  *request = {};
  Json json;
  if (auto error = ParseRequestBody(body, &json)) return error;
  const RequestFields fields(json, "");
  if (auto error = fields.Text("model", &request->model)) return error;
  if (auto error = fields.Flag("return_token_strs", &request->return_token_strs)) return error;
  const bool chat = fields.Has("messages");
  if (chat) {
    request->add_special_tokens = false;
    if (auto error =
            ReadMessages(json, variables_json, fields.Find("tools"), &request->chat_json)) {
      return error;
    }
  } else {
    if (!fields.Has("prompt")) return BadParameter("prompt", "prompt: it is missing");
    if (auto error = fields.Text("prompt", &request->text)) return error;
  }
  return fields.Flag("add_special_tokens", &request->add_special_tokens);
}

std::optional<ApiError> ParseDetokenizeRequest(std::string_view body, DetokenizeRequest* request) {
  *request = {};
  Json json;
  if (auto error = ParseRequestBody(body, &json)) return error;
  const RequestFields fields(json, "");
  if (auto error = fields.Text("model", &request->model)) return error;
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    return BadParameter("tokens", "tokens: expected a list of token ids");
  }
  return ReadIds("tokens", *tokens, &request->tokens);
}

std::optional<ApiError> ParseConfigChange(std::string_view body, ConfigChange* change) {
  *change = {};
  Json json;
  if (auto error = ParseRequestBody(body, &json)) return error;
  for (const auto& [name, value] : json.items()) {
    if (name != "rate_limit" && name != "reload_keys" && name != "reload_certificate") {
      return BadParameter(name, name +
                                    ": cannot be changed; rate_limit, reload_keys and "
                                    "reload_certificate can");
    }
  }
  const RequestFields fields(json, "");
  int64_t rate = -1;
  if (auto error = fields.Integer("rate_limit", 0, 1'000'000'000, &rate)) return error;
  if (rate >= 0) change->rate_limit = rate;
  if (auto error = fields.Flag("reload_keys", &change->reload_keys)) return error;
  return fields.Flag("reload_certificate", &change->reload_certificate);
}

}  // namespace expertflow
