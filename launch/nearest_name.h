// Guesses what somebody meant who misspelt a name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace expertflow {

// The first of `names` that differs from `word` by the fewest letters (inserted, left out or
// replaced), at most two; empty when none is that near. Points into `names`.
std::string_view NearestName(std::string_view word, const std::vector<std::string>& names);

}  // namespace expertflow
