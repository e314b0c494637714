// Calls of functions in a model's text, as the templates of most models teach them: lines of
// <tool_call>{"name": ..., "arguments": {...}}</tool_call>. Pure; one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace expertflow {

struct ToolCallText {
  std::string name;
  std::string arguments;  // JSON
};

// Takes the calls out of a text as it comes. What is no proper call stays text, so nothing is lost.
class ToolCallReader {
 public:
  struct Piece {
    std::string text;  // outside of calls
    std::vector<ToolCallText> calls;
  };

  Piece Push(std::string_view text);
  // What is still held back, at the end.
  Piece Flush();

 private:
  std::string held_;   // the beginning of a call, or of its tag
  std::string space_;  // at the beginning or behind a call: text when more text follows
  bool has_call_ = false;
  bool has_text_ = false;  // something was given
};

// The grammar (model/grammar) of a text that is one call of one of these functions.
// `functions_json`: [{"name", "parameters"}, ...]
std::string ToolCallGrammar(std::string_view functions_json);

}  // namespace expertflow
