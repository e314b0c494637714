#include "launch/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace expertflow {
namespace {

constexpr size_t kDifferenceMax = 2;

// Levenshtein's distance, one row of the table at a time.
size_t Difference(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j < row.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({change, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::string_view NearestName(std::string_view word, const std::vector<std::string>& names) {
  std::string_view nearest;
  size_t least = kDifferenceMax + 1;
  for (const std::string& name : names) {
    const size_t difference = Difference(word, name);
    if (difference >= least) continue;
    least = difference;
    nearest = name;
  }
  return nearest;
}

}  // namespace expertflow
