// Streaming JSON for the files of a checkpoint. No tree is built: a hostile document costs no
// memory, and a handler refuses it at the first value that does not belong there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/status.h"

namespace expertflow {

// Integers outside int64_t arrive as double. A string is valid during the call only.
using JsonScalar = std::variant<std::nullptr_t, bool, int64_t, double, std::string_view>;

// As an error message shows it: "text" (shortened), 12, true, null.
std::string DescribeJson(const JsonScalar& value);

// Receives a document in its order. An error stops the parser and is what ParseJson returns.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual Status BeginObject() = 0;
  virtual Status EndObject() = 0;
  virtual Status BeginArray() = 0;
  virtual Status EndArray() = 0;
  virtual Status Key(std::string_view key) = 0;
  virtual Status Scalar(const JsonScalar& value) = 0;
};

// Objects and arrays nested deeper than `max_depth` are an error, as is anything after the value.
Status ParseJson(std::string_view text, size_t max_depth, JsonHandler& handler);

}  // namespace expertflow
