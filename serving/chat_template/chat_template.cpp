#include "serving/chat_template/chat_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "serving/chat_template/template_lexer.h"
#include "serving/chat_template/template_renderer.h"
#include "serving/chat_template/template_syntax.h"

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVariableDepthMax = 200;

TemplateValue ValueOf(const Json& json, int depth) {
  if (depth > kVariableDepthMax) throw TemplateError{0, "the variables are nested too deep"};
  switch (json.type()) {
    case Json::value_t::boolean: return TemplateValue(json.get<bool>());
    case Json::value_t::number_integer: return TemplateValue(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) {
        return TemplateValue(json.get<int64_t>());
      }
      return TemplateValue(json.get<double>());
    case Json::value_t::number_float: return TemplateValue(json.get<double>());
    case Json::value_t::string: return TemplateValue(json.get<std::string>());
    case Json::value_t::array: {
      TemplateList list;
      for (const Json& item : json) list.push_back(ValueOf(item, depth + 1));
      return TemplateValue(std::move(list));
    }
    case Json::value_t::object: {
      TemplateDict dict;
      for (const auto& [name, field] : json.items()) {
        dict.emplace_back(name, ValueOf(field, depth + 1));
      }
      return TemplateValue(std::move(dict));
    }
    default: return TemplateValue(TemplateValue::None{});
  }
}

}  // namespace

struct ChatTemplate::Parts {
  std::string name;
  TemplateNodes nodes;
  std::set<std::string, std::less<>> names;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::ChatTemplate(ChatTemplate&& other) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&& other) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source, std::string name) {
  if (source.size() > kSourceBytesMax) {
    return InvalidArgument(fmt::format("{}: the template is larger than 1 MiB", name));
  }
  auto parts = std::make_unique<Parts>();
  try {
    parts->nodes = ParseTemplate(source);
    for (TemplateToken& token : LexTemplate(source)) {
      if (token.kind == TemplateTokenKind::kName) parts->names.insert(std::move(token.text));
    }
  } catch (const TemplateError& error) {
    return InvalidArgument(fmt::format("{}:{}: {}", name, error.line, error.message));
  }
  parts->name = std::move(name);
  return ChatTemplate(std::unique_ptr<const Parts>(std::move(parts)));
}

bool ChatTemplate::Names(std::string_view name) const {
  return parts_->names.contains(name);
}

Result<std::string> ChatTemplate::Render(std::string_view variables_json,
                                         int64_t now_seconds) const {
  try {
    const Json json = Json::parse(variables_json);
    const TemplateValue variables = ValueOf(json, 0);
    if (variables.dict() == nullptr) return InvalidArgument("the variables are not an object");
    return RenderTemplate(parts_->nodes, *variables.dict(), now_seconds);
  } catch (const Json::exception& error) {
    return InvalidArgument(fmt::format("the variables are not JSON: {}", error.what()));
  } catch (const TemplateError& error) {
    return InvalidArgument(fmt::format("{}:{}: {}", parts_->name, error.line, error.message));
  }
}

}  // namespace expertflow
