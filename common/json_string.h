// Text as a JSON string, for writers that do without a JSON library. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace expertflow {

// With quotes. Only quotes, backslashes and control characters are escaped: UTF-8 that is broken
// stays so.
std::string JsonQuoted(std::string_view text);

}  // namespace expertflow
