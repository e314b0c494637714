// What the API says when it refuses a request or one fails, in the shape that OpenAI's clients
// read. A plain value.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"
#include "serving/http/http.h"

namespace expertflow {

struct ApiError {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {};           // empty: null
  std::string code = {};            // empty: null
  int64_t retry_after_seconds = 1;  // of 429 and 503
};

// The request has a wrong or unsupported parameter.
ApiError BadParameter(std::string param, std::string message);
// What a failed request's status means to a client.
ApiError ApiErrorFrom(const Status& status);

// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
std::string ErrorJson(const ApiError& error);
// With Retry-After when the client should try again.
HttpResponse ErrorResponse(const ApiError& error);

}  // namespace expertflow
