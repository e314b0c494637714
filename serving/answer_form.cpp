#include "serving/answer_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/grammar/schema_grammar.h"
#include "serving/tool_calls.h"

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kToolsMax = 128;
constexpr size_t kNameBytesMax = 64;

std::optional<ApiError> CheckGrammar(const char* param, const std::string& grammar) {
  const Status status = ParseGrammar(grammar).status();
  if (status.ok()) return std::nullopt;
  return BadParameter(param, fmt::format("{}: {}", param, status.message()));
}

bool IsFunctionName(const Json& name) {
  if (!name.is_string()) return false;
  const auto& text = name.get_ref<const std::string&>();
  return !text.empty() && text.size() <= kNameBytesMax &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
             std::string::npos;
}

std::optional<ApiError> CheckTools(const Json& tools) {
  if (!tools.is_array() || tools.size() > kToolsMax) {
    return BadParameter("tools", fmt::format("tools: expected a list of at most {}, found {}",
                                             kToolsMax, ShortJson(tools)));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const std::string where = fmt::format("tools[{}]", i);
    if (!tool.is_object() || tool.value("type", Json()) != "function" ||
        !tool.contains("function") || !tool["function"].is_object()) {
      return BadParameter(where,
                          where + ": expected {\"type\": \"function\", \"function\": {...}}");
    }
    const Json& function = tool["function"];
    if (!IsFunctionName(function.value("name", Json()))) {
      return BadParameter(where, fmt::format("{}: name: expected 1 to {} letters, digits, '_', '-' "
                                             "or '.'",
                                             where, kNameBytesMax));
    }
    if (!function.value("parameters", Json::object()).is_object()) {
      return BadParameter(where, where + ": parameters: expected a schema");
    }
  }
  return std::nullopt;
}

// The functions that `choice` demands a call of one of; null: it demands none.
Json DemandedFunctions(const Json& tools, const Json& choice) {
  Json functions;
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    const bool named = choice.is_object() && choice.value("type", Json()) == "function" &&
                       choice.value("function", Json::object()).is_object() &&
                       choice["function"].value("name", Json()) == function["name"];
    if (named || choice == "required") functions.push_back(function);
  }
  return functions;
}

}  // namespace

std::optional<ApiError> ReadResponseFormat(const RequestFields& fields, std::string* grammar) {
  const Json* format = fields.Find("response_format");
  if (format == nullptr) return std::nullopt;
  const Json type = format->is_object() ? format->value("type", Json()) : Json();
  Json schema;
  if (type == "text") return std::nullopt;
  if (type == "json_object") {
    schema = {{"type", "object"}};
  } else if (type == "json_schema") {
    const Json& outer = format->value("json_schema", Json::object());
    if (!outer.is_object() || !outer.contains("schema")) {
      return BadParameter("response_format",
                          "response_format: json_schema: expected an object with a schema");
    }
    schema = outer["schema"];
  } else {
    return BadParameter("response_format",
                        fmt::format("response_format: expected an object with the type text, "
                                    "json_object or json_schema, found {}",
                                    ShortJson(*format)));
  }
  *grammar = Json({{"alternatives", Json::array({{{"schema", std::move(schema)}}})}}).dump();
  return CheckGrammar("response_format", *grammar);
}

std::optional<ApiError> ReadTools(const RequestFields& fields, ToolOptions* options) {
  static const Json kAuto = "auto";
  const Json* tools = fields.Find("tools");
  if (tools != nullptr) {
    if (auto error = CheckTools(*tools)) return error;
    if (tools->empty()) tools = nullptr;
  }
  const Json* found = fields.Find("tool_choice");
  const Json& choice = found == nullptr ? kAuto : *found;
  if (choice == "none" || (choice == "auto" && tools == nullptr)) return std::nullopt;
  bool parallel = true;
  if (auto error = fields.Flag("parallel_tool_calls", &parallel)) return error;
  if (choice == "auto") {
    if (!parallel) {
      return BadParameter("parallel_tool_calls",
                          "parallel_tool_calls: false needs a tool_choice that demands a call");
    }
    options->tools = tools;
    return std::nullopt;
  }
  const Json functions = tools == nullptr ? Json() : DemandedFunctions(*tools, choice);
  if (functions.is_null()) {
    return BadParameter("tool_choice",
                        fmt::format("tool_choice: expected none, auto, required, or one of the "
                                    "tools by its name, found {}",
                                    ShortJson(choice)));
  }
  options->tools = tools;
  options->grammar = ToolCallGrammar(functions.dump());
  return CheckGrammar("tools", options->grammar);
}

}  // namespace expertflow
