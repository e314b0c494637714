// 16-bit floats: IEEE binary16 and bfloat16.
#pragma once

#include <bit>
#include <cstdint>

namespace expertflow {

// Rounds to nearest even; what does not fit becomes infinite.
uint16_t HalfFromFloat(float value);
float FloatFromHalf(uint16_t half);

inline float FloatFromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

}  // namespace expertflow
