#include "serving/request_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/json_string.h"

namespace expertflow {

namespace {

using Json = nlohmann::ordered_json;  // a template may print it

constexpr int kBodyDepthMax = 100;

}  // namespace

std::optional<ApiError> ParseRequestBody(std::string_view body, Json* json) {
  if (JsonNestsDeeper(body, kBodyDepthMax)) {
    return ApiError{.message =
                        fmt::format("the body is nested deeper than {} levels", kBodyDepthMax)};
  }
  try {
    *json = Json::parse(body);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string_view what = error.what();
    const size_t start = what.find("] ");
    return ApiError{
        .message = fmt::format("the body is not valid JSON: {}",
                               start == std::string_view::npos ? what : what.substr(start + 2))};
  }
  if (!json->is_object()) {
    return ApiError{.message = fmt::format("the body is not a JSON object: {}", ShortJson(*json))};
  }
  return std::nullopt;
}

std::string ShortJson(const Json& json) {
  constexpr size_t kShown = 40;
  if (json.is_array() && json.size() > kShown) return fmt::format("a list of {}", json.size());
  if (json.is_object() && json.size() > kShown) return "an object";
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

std::optional<int64_t> WholeNumber(const Json& json) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  const double number = json.is_number() ? json.get<double>() : 0.5;
  if (std::trunc(number) != number || std::abs(number) > kExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

const Json* RequestFields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

ApiError RequestFields::Wrong(const char* name, const std::string& expected,
                              const Json& found) const {
  return BadParameter(prefix_ + name, fmt::format("{}{}: expected {}, found {}", prefix_, name,
                                                  expected, ShortJson(found)));
}

std::optional<ApiError> RequestFields::Text(const char* name, std::string* value) const {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  if (!field->is_string()) return Wrong(name, "text", *field);
  *value = field->get<std::string>();
  return std::nullopt;
}

std::optional<ApiError> RequestFields::Flag(const char* name, bool* value) const {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  if (!field->is_boolean()) return Wrong(name, "true or false", *field);
  *value = field->get<bool>();
  return std::nullopt;
}

std::optional<ApiError> RequestFields::Number(const char* name, double min, double max,
                                              double* value) const {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  const double number = field->is_number() ? field->get<double>() : 0;
  if (!field->is_number() || !(number >= min && number <= max)) {
    return Wrong(name, fmt::format("a number from {} to {}", min, max), *field);
  }
  *value = number;
  return std::nullopt;
}

std::optional<ApiError> RequestFields::Integer(const char* name, int64_t min, int64_t max,
                                               int64_t* value) const {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  const std::optional<int64_t> number = WholeNumber(*field);
  if (!number || *number < min || *number > max) {
    return Wrong(name, fmt::format("an integer from {} to {}", min, max), *field);
  }
  *value = *number;
  return std::nullopt;
}

}  // namespace expertflow
