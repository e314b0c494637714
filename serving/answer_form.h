// What a request says of the form of its answer: response_format, tools and tool_choice. Internal
// to the parsing of requests. Pure functions, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "serving/api_error.h"
#include "serving/request_fields.h"

namespace expertflow {

// `grammar` stays as it is for plain text.
std::optional<ApiError> ReadResponseFormat(const RequestFields& fields, std::string* grammar);

struct ToolOptions {
  const nlohmann::ordered_json* tools = nullptr;  // for the template; null: none
  std::string grammar = {};                       // when a call is demanded
};

// Borrows from the fields.
std::optional<ApiError> ReadTools(const RequestFields& fields, ToolOptions* options);

}  // namespace expertflow
