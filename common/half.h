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

// Rounds to nearest even; NaN stays NaN.
inline uint16_t BFloat16FromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace expertflow
