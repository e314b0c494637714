#include "worker/cache/leaving_experts.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/wide.h"

namespace expertflow {
namespace {

// Several numbers of one register.
constexpr size_t kLanes = 8;
using Lanes = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));

EXPERTFLOW_WIDE uint32_t LargestOf(const uint32_t* distance, const uint32_t* mask, size_t count) {
  Lanes largest = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes numbers;
    Lanes masks;
    std::memcpy(&numbers, distance + i, sizeof(numbers));
    std::memcpy(&masks, mask + i, sizeof(masks));
    numbers &= masks;
    largest = numbers > largest ? numbers : largest;
  }
  uint32_t found = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) found = std::max(found, largest[lane]);
  for (; i < count; ++i) found = std::max(found, distance[i] & mask[i]);
  return found;
}

}  // namespace

std::span<const size_t> LeavingExperts::Those(size_t first, size_t count) {
  CHECK(first + count <= mask_.size());
  // Without a branch that depends on who may leave, which nobody can foresee.
  those_.resize(std::max(those_.size(), count));
  size_t found = 0;
  for (size_t expert = first; expert < first + count; ++expert) {
    those_[found] = expert;
    found += mask_[expert] & 1u;
  }
  return std::span<const size_t>(those_).first(found);
}

uint32_t LeavingExperts::Farthest(std::span<const uint32_t> distance, size_t first,
                                  size_t count) const {
  CHECK(distance.size() == mask_.size() && first + count <= mask_.size());
  return LargestOf(distance.data() + first, mask_.data() + first, count);
}

}  // namespace expertflow
