#include "serving/chat_template/template_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/json_string.h"

namespace expertflow {
namespace {

// The shortest text that reads back as the same number, as Python's repr().
std::string RealText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  const auto format = size != 0 && (size < 1e-4 || size >= 1e16) ? std::chars_format::scientific
                                                                 : std::chars_format::fixed;
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, format).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string PythonQuoted(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (c == quote) out += '\\';
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + quote;
}

void AppendJson(const TemplateValue& value, int indent, int depth, std::string* out) {
  const auto line = [&](int level) {
    if (indent < 0) return;
    *out += '\n';
    out->append(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
  };
  const std::string_view comma = indent < 0 ? ", " : ",";
  if (const TemplateList* list = value.list()) {
    *out += '[';
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) *out += comma;
      line(depth + 1);
      AppendJson((*list)[i], indent, depth + 1, out);
    }
    if (!list->empty()) line(depth);
    *out += ']';
  } else if (const TemplateDict* dict = value.dict()) {
    *out += '{';
    for (size_t i = 0; i < dict->size(); ++i) {
      if (i > 0) *out += comma;
      line(depth + 1);
      *out += JsonQuoted((*dict)[i].first) + ": ";
      AppendJson((*dict)[i].second, indent, depth + 1, out);
    }
    if (!dict->empty()) line(depth);
    *out += '}';
  } else if (const std::string* text = value.string()) {
    *out += JsonQuoted(*text);
  } else if (const bool* boolean = value.boolean()) {
    *out += *boolean ? "true" : "false";
  } else if (value.is_none()) {
    *out += "null";
  } else if (value.IsNumber()) {
    *out += value.Print();
  } else {
    throw TemplateError{0, fmt::format("{} cannot be written as JSON", value.TypeName())};
  }
}

}  // namespace

bool TemplateValue::Truthy() const {
  if (undefined() != nullptr || is_none()) return false;
  if (const bool* value = boolean()) return *value;
  if (const int64_t* value = integer()) return *value != 0;
  if (const double* value = real()) return *value != 0;
  if (const std::string* value = string()) return !value->empty();
  if (const TemplateList* value = list()) return !value->empty();
  if (const TemplateDict* value = dict()) return !value->empty();
  return true;
}

double TemplateValue::AsReal() const {
  if (const bool* value = boolean()) return *value ? 1 : 0;
  if (const int64_t* value = integer()) return static_cast<double>(*value);
  return *real();
}

const TemplateValue* TemplateValue::Field(std::string_view name) const {
  const TemplateDict* fields = dict();
  if (const Namespace* space = name_space()) fields = space->fields.get();
  if (fields == nullptr) return nullptr;
  const auto found = std::find_if(fields->begin(), fields->end(),
                                  [name](const auto& field) { return field.first == name; });
  return found == fields->end() ? nullptr : &found->second;
}

std::string TemplateValue::Print() const {
  if (undefined() != nullptr) return "";
  if (const std::string* value = string()) return *value;
  return Repr();
}

std::string TemplateValue::Repr() const {
  if (is_none()) return "None";
  if (const bool* value = boolean()) return *value ? "True" : "False";
  if (const int64_t* value = integer()) return fmt::format("{}", *value);
  if (const double* value = real()) return RealText(*value);
  if (const std::string* value = string()) return PythonQuoted(*value);
  if (const TemplateList* value = list()) {
    std::string text;
    for (const TemplateValue& item : *value) text += (text.empty() ? "" : ", ") + item.Repr();
    return "[" + text + "]";
  }
  if (const TemplateDict* value = dict()) {
    std::string text;
    for (const auto& [name, item] : *value) {
      text += (text.empty() ? "" : ", ") + PythonQuoted(name) + ": " + item.Repr();
    }
    return "{" + text + "}";
  }
  return undefined() != nullptr ? "Undefined" : fmt::format("<{}>", TypeName());
}

std::string_view TemplateValue::TypeName() const {
  static constexpr std::string_view kNames[] = {
      "an undefined value", "none",   "a boolean", "an integer",  "a number",
      "a string",           "a list", "an object", "a namespace", "a function"};
  return kNames[value_.index()];
}

bool operator==(const TemplateValue& a, const TemplateValue& b) {
  if (a.IsNumber() && b.IsNumber()) {
    if (a.integer() != nullptr && b.integer() != nullptr) return *a.integer() == *b.integer();
    return a.AsReal() == b.AsReal();
  }
  if (a.value_.index() != b.value_.index()) return false;
  if (a.string() != nullptr) return *a.string() == *b.string();
  if (a.list() != nullptr) return *a.list() == *b.list();
  if (const TemplateDict* fields = a.dict()) {
    if (fields->size() != b.dict()->size()) return false;
    return std::all_of(fields->begin(), fields->end(), [&b](const auto& field) {
      const TemplateValue* other = b.Field(field.first);
      return other != nullptr && field.second == *other;
    });
  }
  return a.undefined() != nullptr || a.is_none();
}

std::string TemplateJson(const TemplateValue& value, int indent) {
  std::string out;
  AppendJson(value, indent, 0, &out);
  return out;
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    characters.push_back(text.substr(at, end - at));
    at = end;
  }
  return characters;
}

}  // namespace expertflow
