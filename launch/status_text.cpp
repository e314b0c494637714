#include "launch/status_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace expertflow {
namespace {

using Json = nlohmann::ordered_json;

std::string Scalar(const Json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool IsFlat(const Json& value) {
  for (const auto& element : value) {
    if (element.is_structured()) return false;
  }
  return true;
}

// "requested": {"workers": {"value": "2", "source": "command line"}, ...}
bool IsProvenance(const Json& value) {
  return value.is_object() && value.size() == 2 && value.contains("value") &&
         value.contains("source");
}

void Append(const std::string& name, const Json& value, size_t indent, std::string* out) {
  const std::string margin(indent, ' ');
  if (IsProvenance(value)) {
    *out += fmt::format("{}{} = {} ({})\n", margin, name, Scalar(value["value"]),
                        Scalar(value["source"]));
  } else if (!value.is_structured()) {
    *out += fmt::format("{}{}: {}\n", margin, name, Scalar(value));
  } else if (value.is_array() && IsFlat(value)) {
    *out += fmt::format("{}{}: {}\n", margin, name, value.dump());
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      Append(fmt::format("{}[{}]", name, i), value[i], indent, out);
    }
  } else {
    *out += fmt::format("{}{}\n", margin, name);
    for (const auto& [key, element] : value.items()) Append(key, element, indent + 2, out);
  }
}

}  // namespace

std::string DescribeStatus(const std::string& json) {
  const Json status = Json::parse(json, nullptr, false);
  if (!status.is_object()) return json + "\n";
  std::string text;
  for (const auto& [key, value] : status.items()) Append(key, value, 0, &text);
  return text;
}

}  // namespace expertflow
