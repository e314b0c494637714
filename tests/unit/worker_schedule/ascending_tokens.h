#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace expertflow::testing {

// first, first + 1, ...
inline std::vector<int32_t> Ascending(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace expertflow::testing
