// The syntax tree of a chat template, and its parser. The tree is immutable. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serving/chat_template/template_value.h"

namespace expertflow {

struct TemplateNode;
using TemplateNodes = std::vector<std::unique_ptr<TemplateNode>>;

struct TemplateArgument {
  std::string name;  // empty: positional
  std::unique_ptr<TemplateNode> value;
};

struct TemplateNode {
  enum class Kind {
    // Expressions.
    kLiteral,    // literal
    kName,       // text
    kList,       // children
    kDict,       // children: key, value, key, value
    kAttribute,  // children[0] . text
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ children[1] : children[2] : children[3] ], null when left out
    kCall,       // children[0] ( arguments )
    kFilter,     // children[0] | text ( arguments )
    kTest,       // children[0] is text ( arguments )
    kUnary,      // text children[0]
    kBinary,     // children[0] text children[1]
    kCaptured,   // what a filter block has in it
    kCondition,  // children[0] if children[1] else children[2] (null when left out)
    // Statements.
    kText,         // text
    kOutput,       // children[0]
    kIf,           // children[0]; body, otherwise
    kFor,          // names in children[0], if children[1]; body, otherwise
    kSet,          // names = children[0]
    kSetField,     // names[0] . text = children[0]
    kSetBlock,     // names[0]: body
    kFilterBlock,  // children[0], with kCaptured in it: body
    kMacro,        // text ( arguments: name and default ): body
    kBody,         // body, for a tag that changes nothing
    kBreak,
    kContinue,
  };

  Kind kind;
  int line = 0;
  std::string text = {};
  int height = 1;  // of the expression below it
  TemplateValue literal = {};
  TemplateNodes children = {};
  std::vector<TemplateArgument> arguments = {};
  std::vector<std::string> names = {};
  TemplateNodes body = {};
  TemplateNodes otherwise = {};
};

// Throws TemplateError.
TemplateNodes ParseTemplate(std::string_view source);

}  // namespace expertflow
