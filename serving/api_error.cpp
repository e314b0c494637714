#include "serving/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "serving/json_text.h"

namespace expertflow {
namespace {

std::string StringOrNull(const std::string& text) {
  return text.empty() ? "null" : JsonString(text);
}

}  // namespace

ApiError BadParameter(std::string param, std::string message) {
  return {.message = std::move(message), .param = std::move(param)};
}

ApiError ApiErrorFrom(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return {.message = status.message()};
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      return {
          .http_status = 503,
          .message = status.message(),
          .type = "service_unavailable_error",
          .code = status.code() == StatusCode::kResourceExhausted ? "overloaded" : "unavailable"};
    default: return {.http_status = 500, .message = status.message(), .type = "server_error"};
  }
}

std::string ErrorJson(const ApiError& error) {
  return fmt::format(R"({{"error":{{"message":{},"type":{},"param":{},"code":{}}}}})",
                     JsonString(error.message), JsonString(error.type), StringOrNull(error.param),
                     StringOrNull(error.code));
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.http_status, .body = ErrorJson(error)};
  if (error.http_status == 429 || error.http_status == 503) {
    response.headers.emplace_back("Retry-After", fmt::format("{}", error.retry_after_seconds));
  }
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace expertflow
