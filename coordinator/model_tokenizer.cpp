#include "coordinator/model_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "model/checkpoint/model_files.h"

namespace expertflow {
namespace {

constexpr const char* kFile = "tokenizer.json";
constexpr const char* kConfig = "tokenizer_config.json";
constexpr size_t kTokenizerConfigBytesMax = size_t{16} << 20;

// What `switch_name` says of `token_name`, which is a text or an object with its content.
Result<std::optional<std::string>> PromptToken(const nlohmann::json& config,
                                               const char* switch_name, const char* token_name) {
  const auto on = config.find(switch_name);
  if (on == config.end() || !on->is_boolean()) return std::optional<std::string>();
  if (!on->get<bool>()) return std::optional<std::string>("");
  const auto token = config.find(token_name);
  if (token != config.end() && token->is_string()) {
    return std::optional<std::string>(token->get<std::string>());
  }
  if (token != config.end() && token->is_object() && token->contains("content") &&
      (*token)["content"].is_string()) {
    return std::optional<std::string>((*token)["content"].get<std::string>());
  }
  return InvalidArgument(fmt::format("{}: true, but {} is no token", switch_name, token_name));
}

Result<PromptTokens> ReadPromptTokens(const std::string& model) {
  PromptTokens prompt;
  const Result<std::string> text = ReadModelText(model, kConfig, kTokenizerConfigBytesMax);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return prompt;
  RETURN_IF_ERROR(text.status());
  const auto config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return InvalidArgument(ModelTextName(model, kConfig) + ": expected a JSON object");
  }
  for (const auto& [on, token, into] : {std::tuple("add_bos_token", "bos_token", &prompt.before),
                                        std::tuple("add_eos_token", "eos_token", &prompt.after)}) {
    auto found = PromptToken(config, on, token);
    if (!found.ok()) return found.status().WithContext(ModelTextName(model, kConfig));
    *into = *std::move(found);
  }
  return prompt;
}

}  // namespace

std::string ModelTokenizerName(const std::string& model, const std::string& file) {
  return file.empty() ? ModelTextName(model, kFile) : file;
}

Result<std::unique_ptr<Tokenizer>> LoadModelTokenizer(const std::string& model,
                                                      const std::string& file) {
  const std::string name = ModelTokenizerName(model, file);
  if (!file.empty()) return Tokenizer::Load(name);
  ASSIGN_OR_RETURN(const std::string text, ReadModelText(model, kFile, SIZE_MAX));
  if (IsGguf(model)) return Tokenizer::Parse(text, name);
  ASSIGN_OR_RETURN(const PromptTokens prompt, ReadPromptTokens(model));
  return Tokenizer::Parse(text, name, prompt);
}

}  // namespace expertflow
