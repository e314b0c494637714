// JSON without a JSON library: writing strings, and a check before parsing. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace expertflow {

// With quotes. Only quotes, backslashes and control characters are escaped: UTF-8 that is broken
// stays so.
std::string JsonQuoted(std::string_view text);

// Whether lists and objects are nested deeper than `depth`: the JSON library recurses into values
// when it compares, copies or prints them. `json` need not be valid.
bool JsonNestsDeeper(std::string_view json, int depth);

}  // namespace expertflow
