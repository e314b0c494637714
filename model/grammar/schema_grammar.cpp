#include "model/grammar/schema_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/json_string.h"
#include "model/grammar/json_grammar.h"
#include "model/grammar/number_grammar.h"
#include "model/grammar/pattern_grammar.h"

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;  // properties in their order
using NodeId = Grammar::NodeId;

constexpr uint32_t kSchemaRepetitionsMax = 4096;
constexpr size_t kBytesMax = size_t{1} << 20;
constexpr size_t kAlternativesMax = 256;
constexpr int kSchemaDepthMax = 120;
constexpr size_t kTypes = 7;

// They say something about a value, but do not restrict it.
bool IsAnnotation(const std::string& keyword) {
  static const std::set<std::string> kAnnotations = {
      "title",       "description", "default",   "examples",     "deprecated",
      "readOnly",    "$comment",    "writeOnly", "$schema",      "$id",
      "definitions", "$defs",       "strict",    "discriminator"};
  return kAnnotations.count(keyword) > 0;
}

struct SchemaError {
  std::string message;
};

// Throws SchemaError inside; it does not leave this file.
class SchemaCompiler {
 public:
  SchemaCompiler(const Json& root, Grammar* grammar, JsonGrammar* json)
      : root_(root), grammar_(*grammar), json_(*json) {}

  NodeId Compile(const Json& schema, const std::string& where, NodeId next);

 private:
  [[noreturn]] static void Refuse(const std::string& where, const std::string& what) {
    throw SchemaError{fmt::format("{}: {}", where, what)};
  }
  // Every keyword but annotations must be among `known`.
  static void CheckKeywords(const Json& schema, const std::string& where,
                            const std::vector<std::string>& known);
  static std::optional<uint32_t> Count(const Json& schema, const std::string& where,
                                       const char* keyword);

  NodeId Reference(const Json& schema, const std::string& where, NodeId next);
  NodeId AnyOf(const Json& schema, const std::string& where, NodeId next);
  NodeId Literals(const Json& values, const std::string& where, NodeId next);
  NodeId OfType(const Json& schema, const std::string& type, const std::string& where, NodeId next);
  NodeId String(const Json& schema, const std::string& where, NodeId next);
  NodeId Number(const Json& schema, const std::string& type, const std::string& where, NodeId next);
  NodeId Object(const Json& schema, const std::string& where, NodeId next);
  NodeId Array(const Json& schema, const std::string& where, NodeId next);
  // A rule of its own.
  NodeId Rule(const Json& schema, const std::string& where) {
    return Compile(schema, where, grammar_.Return());
  }

  const Json& root_;
  Grammar& grammar_;
  JsonGrammar& json_;
  std::map<std::string, NodeId> references_;  // rules by what they are called
};

void SchemaCompiler::CheckKeywords(const Json& schema, const std::string& where,
                                   const std::vector<std::string>& known) {
  for (const auto& [keyword, value] : schema.items()) {
    if (IsAnnotation(keyword)) continue;
    if (std::find(known.begin(), known.end(), keyword) == known.end()) {
      Refuse(where, keyword + " is not supported" +
                        (known.empty() ? "" : fmt::format(" together with {}", known[0])));
    }
  }
}

std::optional<uint32_t> SchemaCompiler::Count(const Json& schema, const std::string& where,
                                              const char* keyword) {
  const auto found = schema.find(keyword);
  if (found == schema.end()) return std::nullopt;
  const bool fits = found->is_number_unsigned() && found->get<uint64_t>() <= kSchemaRepetitionsMax;
  if (!fits) Refuse(where, fmt::format("{}: expected 0 to {}", keyword, kSchemaRepetitionsMax));
  return found->get<uint32_t>();
}

NodeId SchemaCompiler::Compile(const Json& schema, const std::string& where, NodeId next) {
  if (grammar_.full()) Refuse(where, "the schema is too large");
  if (schema == true) return json_.Value(next);
  if (!schema.is_object()) Refuse(where, "expected a schema, an object");
  if (schema.contains("$ref")) return Reference(schema, where, next);
  if (schema.contains("anyOf")) return AnyOf(schema, where, next);
  if (schema.contains("allOf")) {
    CheckKeywords(schema, where, {"allOf"});
    const Json& all = schema["allOf"];
    if (!all.is_array() || all.size() != 1) Refuse(where, "allOf of several is not supported");
    return Compile(all[0], where + "/allOf/0", next);
  }
  if (schema.contains("const")) {
    CheckKeywords(schema, where, {"const", "type"});
    return Literals(Json::array({schema["const"]}), where, next);
  }
  if (schema.contains("enum")) {
    CheckKeywords(schema, where, {"enum", "type"});
    return Literals(schema["enum"], where, next);
  }
  const auto type = schema.find("type");
  if (type == schema.end()) {
    if (schema.contains("properties")) return Object(schema, where, next);
    if (schema.contains("items") || schema.contains("prefixItems")) {
      return Array(schema, where, next);
    }
    CheckKeywords(schema, where, {});
    return json_.Value(next);
  }
  if (type->is_string()) return OfType(schema, type->get<std::string>(), where, next);
  if (!type->is_array() || type->empty() || type->size() > kTypes) {
    Refuse(where, "type: expected a name or a list of names");
  }
  NodeId any = Grammar::kNone;
  for (const Json& one : *type) {
    if (!one.is_string()) Refuse(where, "type: expected names");
    // A keyword of another type says nothing about this one.
    const std::string name = one.get<std::string>();
    const Json bare = {{"type", name}};
    const bool is_bare = name == "null" || name == "boolean";
    const NodeId node = OfType(is_bare ? bare : schema, name, where, next);
    any = any == Grammar::kNone ? node : grammar_.Either(any, node);
  }
  return any;
}

NodeId SchemaCompiler::Reference(const Json& schema, const std::string& where, NodeId next) {
  CheckKeywords(schema, where, {"$ref"});
  const Json& reference = schema["$ref"];
  const std::string target = reference.is_string() ? reference.get<std::string>() : "";
  if (target.empty() || target[0] != '#') {
    Refuse(where, "$ref: expected a part of this schema, such as #/$defs/name");
  }
  if (const auto known = references_.find(target); known != references_.end()) {
    return grammar_.Call(known->second, next);
  }
  const Json* found = nullptr;
  try {
    const Json::json_pointer pointer(target.substr(1));
    if (root_.contains(pointer)) found = &root_.at(pointer);
  } catch (const Json::exception&) {
    found = nullptr;  // no pointer
  }
  if (found == nullptr) Refuse(where, fmt::format("$ref: there is no {}", target));
  // Known before it is complete, as it may refer to itself.
  const NodeId rule = grammar_.Placeholder();
  references_.emplace(target, rule);
  const NodeId body = Rule(*found, target);
  grammar_.SetEither(rule, body, body);
  return grammar_.Call(rule, next);
}

NodeId SchemaCompiler::AnyOf(const Json& schema, const std::string& where, NodeId next) {
  CheckKeywords(schema, where, {"anyOf"});
  const Json& parts = schema["anyOf"];
  if (!parts.is_array() || parts.empty()) Refuse(where, "anyOf: expected a list of schemas");
  NodeId any = Grammar::kNone;
  for (size_t i = 0; i < parts.size(); ++i) {
    const NodeId node = Compile(parts[i], fmt::format("{}/anyOf/{}", where, i), next);
    any = any == Grammar::kNone ? node : grammar_.Either(any, node);
  }
  return any;
}

NodeId SchemaCompiler::Literals(const Json& values, const std::string& where, NodeId next) {
  if (!values.is_array() || values.empty()) Refuse(where, "enum: expected a list of values");
  NodeId any = Grammar::kNone;
  for (const Json& value : values) {
    const NodeId node =
        grammar_.Text(value.dump(-1, ' ', false, Json::error_handler_t::replace), next);
    any = any == Grammar::kNone ? node : grammar_.Either(any, node);
  }
  return any;
}

NodeId SchemaCompiler::OfType(const Json& schema, const std::string& type, const std::string& where,
                              NodeId next) {
  if (type == "object") return Object(schema, where, next);
  if (type == "array") return Array(schema, where, next);
  if (type == "string") return String(schema, where, next);
  if (type == "integer" || type == "number") return Number(schema, type, where, next);
  CheckKeywords(schema, where, {"type"});
  if (type == "null") return grammar_.Text("null", next);
  if (type == "boolean")
    return grammar_.Either(grammar_.Text("true", next), grammar_.Text("false", next));
  Refuse(where, fmt::format("type: there is no type {}", type));
}

NodeId SchemaCompiler::String(const Json& schema, const std::string& where, NodeId next) {
  for (const char* keyword : {"pattern", "format"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    CheckKeywords(schema, where, {keyword, "type"});
    if (!found->is_string()) Refuse(where, fmt::format("{}: expected text", keyword));
    const auto& text = found->get_ref<const std::string&>();
    const std::string pattern = keyword[0] == 'f' ? PatternOfFormat(text) : text;
    if (pattern.empty()) Refuse(where, fmt::format("{}: {} is not supported", keyword, text));
    const Result<NodeId> node = StringMatching(pattern, &grammar_, grammar_.Text("\"", next));
    if (!node.ok()) Refuse(where, fmt::format("{}: {}", keyword, node.status().message()));
    return grammar_.Text("\"", *node);
  }
  CheckKeywords(schema, where, {"type", "minLength", "maxLength"});
  const uint32_t min = Count(schema, where, "minLength").value_or(0);
  const std::optional<uint32_t> max = Count(schema, where, "maxLength");
  if (max && *max < min) Refuse(where, "maxLength is less than minLength");
  return json_.String(min, max, next);
}

NodeId SchemaCompiler::Number(const Json& schema, const std::string& type, const std::string& where,
                              NodeId next) {
  CheckKeywords(schema, where,
                {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
  NumberBounds bounds;
  bounds.integer = type == "integer";
  const auto take = [&](const char* keyword, bool exclusive, auto tighter,
                        std::optional<double>* bound, bool* bound_exclusive) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return;
    if (!found->is_number()) Refuse(where, fmt::format("{}: expected a number", keyword));
    const auto value = found->get<double>();
    if (*bound && !tighter(value, **bound) && !(exclusive && value == **bound)) return;
    *bound = value;
    *bound_exclusive = exclusive;
  };
  take("minimum", false, std::greater<>(), &bounds.min, &bounds.min_exclusive);
  take("exclusiveMinimum", true, std::greater<>(), &bounds.min, &bounds.min_exclusive);
  take("maximum", false, std::less<>(), &bounds.max, &bounds.max_exclusive);
  take("exclusiveMaximum", true, std::less<>(), &bounds.max, &bounds.max_exclusive);
  if (!bounds.min && !bounds.max) return bounds.integer ? json_.Integer(next) : json_.Number(next);
  const Result<NodeId> node = NumberWithin(bounds, &grammar_, next);
  if (!node.ok()) Refuse(where, node.status().message());
  return *node;
}

NodeId SchemaCompiler::Object(const Json& schema, const std::string& where, NodeId next) {
  CheckKeywords(schema, where, {"type", "properties", "required", "additionalProperties"});
  const Json empty = Json::object();
  const Json& properties = schema.contains("properties") ? schema["properties"] : empty;
  if (!properties.is_object()) Refuse(where, "properties: expected an object");
  std::set<std::string> required;
  if (const auto names = schema.find("required"); names != schema.end()) {
    if (!names->is_array()) Refuse(where, "required: expected a list of names");
    for (const Json& name : *names) {
      if (!name.is_string() || !properties.contains(name.get<std::string>())) {
        Refuse(where, "required: expected names of properties, found " + name.dump());
      }
      required.insert(name.get<std::string>());
    }
  }
  const auto more = schema.find("additionalProperties");
  if (properties.empty()) {
    if (more == schema.end() || *more == true) return json_.Object(next);
    if (*more != false) return json_.Map(Rule(*more, where + "/additionalProperties"), next);
  }
  // From the last property to the first: what follows when some of the earlier ones are there, and
  // when none is.
  const NodeId close = json_.Space(grammar_.Text("}", next));
  NodeId after_some = close;
  NodeId after_none = close;
  for (size_t i = properties.size(); i-- > 0;) {
    const auto property = std::next(properties.begin(), static_cast<int64_t>(i));
    const std::string name = Json(property.key()).dump();
    const NodeId value = Compile(
        property.value(), fmt::format("{}/properties/{}", where, property.key()), after_some);
    const NodeId member = json_.Space(grammar_.Text(name + ":", json_.Space(value)));
    const NodeId next_member = grammar_.Text(",", member);
    const bool optional = required.count(property.key()) == 0;
    after_none = optional ? grammar_.Either(after_none, member) : member;
    after_some = optional ? grammar_.Either(after_some, next_member) : next_member;
  }
  return grammar_.Text("{", after_none);
}

NodeId SchemaCompiler::Array(const Json& schema, const std::string& where, NodeId next) {
  CheckKeywords(schema, where, {"type", "items", "minItems", "maxItems"});
  const uint32_t min = Count(schema, where, "minItems").value_or(0);
  const std::optional<uint32_t> max = Count(schema, where, "maxItems");
  if (max && *max < min) Refuse(where, "maxItems is less than minItems");
  const auto items = schema.find("items");
  const Json any = true;
  const NodeId item = Rule(items == schema.end() ? any : *items, where + "/items");
  return json_.List(item, min, max, next);
}

std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

Result<Grammar> ParseGrammar(std::string_view json) {
  if (json.size() > kBytesMax) return InvalidArgument("the schema is larger than 1 MiB");
  if (JsonNestsDeeper(json, kSchemaDepthMax)) {
    return InvalidArgument(
        fmt::format("the schema is nested deeper than {} levels", kSchemaDepthMax));
  }
  const Json source = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const bool sound = source.is_object() && source.contains("alternatives") &&
                     source["alternatives"].is_array() && !source["alternatives"].empty() &&
                     source["alternatives"].size() <= kAlternativesMax;
  if (!sound) return InvalidArgument("a grammar needs 1 to 256 alternatives");
  Grammar grammar;
  JsonGrammar values(&grammar);
  NodeId any = Grammar::kNone;
  const NodeId end = grammar.Return();
  try {
    for (const Json& one : source["alternatives"]) {
      if (!one.is_object() || !one.contains("schema")) {
        return InvalidArgument("an alternative of a grammar needs a schema");
      }
      const Json& schema = one["schema"];
      SchemaCompiler compiler(schema, &grammar, &values);
      const NodeId node =
          grammar.Text(TextOf(one, "prefix"),
                       compiler.Compile(schema, "#", grammar.Text(TextOf(one, "suffix"), end)));
      any = any == Grammar::kNone ? node : grammar.Either(any, node);
    }
  } catch (const SchemaError& error) {
    return InvalidArgument(error.message);
  } catch (const Json::exception& error) {
    return InvalidArgument(fmt::format("the schema cannot be read: {}", error.what()));
  }
  if (grammar.full()) return InvalidArgument("the schema is too large");
  grammar.SetRoot(any);
  RETURN_IF_ERROR(grammar.CheckRecursion());
  return grammar;
}

}  // namespace expertflow
