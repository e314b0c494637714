// Unicode normalization form C in O(n log n): a long run of combining marks must not cost O(n^2).
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace expertflow {

// REQUIRES: `text` is well-formed UTF-8
Result<std::string> NormalizeNfc(std::string_view text);

}  // namespace expertflow
