// From JSON schemas to grammars. The texts that a grammar allows are valid for the schema; not
// every valid text is allowed: the properties come in the schema's order, and only those that it
// names. A keyword that is not supported is an error with its name. A pure function; any thread.
#pragma once

#include <string_view>

#include "common/status.h"
#include "model/grammar/grammar.h"

namespace expertflow {

// `json`: {"alternatives": [{"prefix": text, "schema": schema, "suffix": text}, ...]}; the text is
// one of them. Errors say where in the schema: "#/properties/a: pattern is not supported".
Result<Grammar> ParseGrammar(std::string_view json);

}  // namespace expertflow
