// The lead of all workers' prefetch as it is published: one number, which is read at each layer and
// may change at any moment. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "predictor/core/stride_controller.h"

namespace expertflow {

struct PublishedStride {
  uint32_t number = 0;  // counts what was published; 0: nothing yet
  int32_t stride = 0;
  StrideCause cause = StrideCause::kStart;
  bool link_bound = false;
};

inline uint64_t PackStride(const PublishedStride& published) {
  return uint64_t{published.number} << 32 | uint64_t{published.link_bound} << 16 |
         static_cast<uint64_t>(published.cause) << 8 | static_cast<uint8_t>(published.stride);
}

// Any number is safe.
inline PublishedStride UnpackStride(uint64_t word) {
  const auto cause =
      std::min<uint64_t>(word >> 8 & 0xff, static_cast<uint64_t>(StrideCause::kLinkBound));
  return {static_cast<uint32_t>(word >> 32), static_cast<int32_t>(word & 0xff),
          static_cast<StrideCause>(cause), (word >> 16 & 1) != 0};
}

}  // namespace expertflow
