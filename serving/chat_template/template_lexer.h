// A chat template cut into text and the tokens of its tags, with white space controlled as
// transformers sets it: trim_blocks and lstrip_blocks. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace expertflow {

enum class TemplateTokenKind {
  kText,      // outside of tags
  kTagBegin,  // "{%" or "{{"
  kTagEnd,
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd,
};

struct TemplateToken {
  TemplateTokenKind kind = TemplateTokenKind::kEnd;
  std::string text;
  int line = 0;
};

// Ends with a kEnd. Throws TemplateError.
std::vector<TemplateToken> LexTemplate(std::string_view source);

}  // namespace expertflow
