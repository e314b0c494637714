// Fields of a JSON object by name, with types and ranges; what is wrong is named. A field that is
// null counts as absent. Internal to the parsing of requests: it brings in the JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "serving/api_error.h"

namespace expertflow {

// A JSON object in valid UTF-8, or what is wrong.
std::optional<ApiError> ParseRequestBody(std::string_view body, nlohmann::ordered_json* json);
// As it may stand in a message: cut when it is long.
std::string ShortJson(const nlohmann::ordered_json& json);
// An integer, or a number without a fraction, as JSON schemas take it; nothing else, and no more
// than 64 bits.
std::optional<int64_t> WholeNumber(const nlohmann::ordered_json& json);

class RequestFields {
 public:
  // Borrows `object`. REQUIRES: it is an object
  RequestFields(const nlohmann::ordered_json& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  const nlohmann::ordered_json* Find(const char* name) const;  // null when absent
  bool Has(const char* name) const { return Find(name) != nullptr; }
  // These leave `value` alone when the field is absent.
  std::optional<ApiError> Text(const char* name, std::string* value) const;
  std::optional<ApiError> Flag(const char* name, bool* value) const;
  std::optional<ApiError> Number(const char* name, double min, double max, double* value) const;
  std::optional<ApiError> Integer(const char* name, int64_t min, int64_t max, int64_t* value) const;

 private:
  ApiError Wrong(const char* name, const std::string& expected,
                 const nlohmann::ordered_json& found) const;

  const nlohmann::ordered_json& object_;
  const std::string prefix_;
};

}  // namespace expertflow
