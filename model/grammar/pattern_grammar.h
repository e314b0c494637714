// Regular expressions of JSON schemas, as the characters of a JSON string.
//
// Of ECMA 262's expressions: characters, `.`, classes ([a-z], [^...], \d \w \s and their
// opposites), groups (named ones, too), alternatives, * + ? {m,n} and `^` and `$` at the ends of an
// alternative. As the schemas demand, what has no `^` or `$` matches anywhere in the string.
// Anything else (look-around, references back, \b, \p) is an error with its name.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "model/grammar/grammar.h"

namespace expertflow {

// What matches `pattern` (UTF-8), as it stands between the quotes of a JSON string; then `next`. A
// pattern beyond the grammar's size makes that full(). Errors are kInvalidArgument.
Result<Grammar::NodeId> StringMatching(std::string_view pattern, Grammar* grammar,
                                       Grammar::NodeId next);

// The pattern of a JSON schema's `format`: a part of what the format allows. Empty when the format
// is not known.
std::string PatternOfFormat(std::string_view format);

}  // namespace expertflow
