#include "serving/model_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/mapped_file.h"
#include "model/checkpoint/model_files.h"

namespace expertflow {
namespace {

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr size_t kTokenizerConfigBytesMax = size_t{16} << 20;

Result<nlohmann::json> ReadConfig(const std::string& model, const std::string& path) {
  Result<std::string> text = ReadModelText(model, kConfigName, kTokenizerConfigBytesMax);
  if (!text.ok()) {
    if (text.status().code() == StatusCode::kNotFound) return nlohmann::json::object();
    return text.status();
  }
  nlohmann::json config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return InvalidArgument(path + ": expected a JSON object");
  return config;
}

// Empty when the config has none.
std::string TemplateIn(const nlohmann::json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return "";
  for (const nlohmann::json& entry : *found) {
    const bool complete = entry.is_object() && entry.contains("template") &&
                          entry["template"].is_string() && entry.contains("name");
    if (complete && entry["name"] == "default") return entry["template"].get<std::string>();
  }
  return "";
}

// A token is text, or an object with its content.
std::string SpecialTokensJson(const nlohmann::json& config) {
  nlohmann::json tokens = nlohmann::json::object();
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    if (found->is_string()) tokens[name] = *found;
    if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
      tokens[name] = (*found)["content"];
    }
  }
  return tokens.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Result<ModelTemplate> LoadModelTemplate(const std::string& folder, const std::string& file) {
  const std::string config_path = ModelTextName(folder, kConfigName);
  ASSIGN_OR_RETURN(const nlohmann::json config, ReadConfig(folder, config_path));
  std::string name = file.empty() ? folder + "/chat_template.jinja" : file;
  Result<std::string> source = NotFound(name);
  if (!file.empty() || !IsGguf(folder)) {
    source = ReadFileToString(name, ChatTemplate::kSourceBytesMax);
  }
  if (!source.ok()) {
    if (!file.empty() || source.status().code() != StatusCode::kNotFound) return source.status();
    name = config_path;
    source = TemplateIn(config);
    if (source->empty()) {
      return NotFound(
          fmt::format("{}: the model has no chat template; give --chat-template FILE", folder));
    }
  }
  ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Parse(*source, name));
  return ModelTemplate{.chat = std::make_shared<const ChatTemplate>(std::move(chat)),
                       .variables_json = SpecialTokensJson(config)};
}

}  // namespace expertflow
