#include "sim/shared_link.h"

#include <algorithm>
#include <iterator>

#include "common/check.h"

namespace expertflow {

SharedLink::SharedLink(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {
  CHECK(bytes_per_second > 0);
}

SharedLink::Passage SharedLink::Take(int64_t from_ns, uint64_t bytes) {
  __extension__ using Wide = unsigned __int128;
  CHECK(bytes > 0);
  auto left_ns = static_cast<int64_t>((Wide{bytes} * 1'000'000'000 + bytes_per_second_ - 1) /
                                      bytes_per_second_);
  busy_ns_ += left_ns;
  // What is taken where `from_ns` is, else a new interval, empty so far. It grows over the free
  // time behind it and swallows what it meets.
  auto at = taken_.upper_bound(from_ns);
  if (at != taken_.begin() && std::prev(at)->second >= from_ns) {
    --at;
  } else {
    at = taken_.emplace_hint(at, from_ns, from_ns);
  }
  Passage passage = {at->second, 0};
  while (true) {
    const auto next = std::next(at);
    const int64_t free_ns = next == taken_.end() ? left_ns : next->first - at->second;
    const int64_t piece_ns = std::min(free_ns, left_ns);
    at->second += piece_ns;
    left_ns -= piece_ns;
    if (left_ns == 0) passage.end_ns = at->second;
    if (next != taken_.end() && at->second == next->first) {
      at->second = next->second;
      taken_.erase(next);
    }
    if (left_ns == 0) return passage;
  }
}

void SharedLink::Forget(int64_t before_ns) {
  while (!taken_.empty() && taken_.begin()->second <= before_ns) taken_.erase(taken_.begin());
}

}  // namespace expertflow
