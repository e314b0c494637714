// Floats of 4 and 8 bits: e2m1 (OCP Microscaling Formats 1.0) and e4m3 without infinities (OCP
// 8-bit Floating Point 1.0).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace expertflow {

inline constexpr float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
inline constexpr float kE4m3Max = 448;

// 1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7f and 0xff are NaN.
inline float FloatFromE4m3(uint8_t bits) {
  const uint32_t rest = bits & 0x7fu;
  if (rest == 0x7f) return NAN;
  // As the bits of a float, but for its bias of 127: small numbers come out right, too.
  const float magnitude = std::bit_cast<float>(rest << 20) * 0x1p120f;
  return (bits & 0x80u) != 0 ? -magnitude : magnitude;
}

// The nearest; ties to even. Larger ones become the largest. REQUIRES of both: no NaN
uint8_t E4m3FromFloat(float value);
uint8_t E2m1FromFloat(float value);

}  // namespace expertflow
