// The chance that at least one of several rows does something. Pure.
#pragma once

#include <cstdint>

namespace expertflow {

// 1 - (1 - a)(1 - b), in millionths.
inline uint32_t AnyOfPpm(uint32_t a_ppm, uint32_t b_ppm) {
  const uint64_t neither = uint64_t{1'000'000 - a_ppm} * (1'000'000 - b_ppm) / 1'000'000;
  return static_cast<uint32_t>(1'000'000 - neither);
}

}  // namespace expertflow
