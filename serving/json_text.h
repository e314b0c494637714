// Text as a JSON string: what answers are written with, a token at a time. Pure, any thread.
#pragma once

#include <string>
#include <string_view>

namespace expertflow {

// With quotes. Broken UTF-8 becomes U+FFFD; everything else but control characters, quotes and
// backslashes stays as it is.
std::string JsonString(std::string_view text);

}  // namespace expertflow
