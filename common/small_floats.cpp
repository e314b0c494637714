#include "common/small_floats.h"

#include <algorithm>

namespace expertflow {
namespace {

// The magnitude's bits with `mantissa` bits of mantissa, the smallest exponent `exponent_min`, and
// at most `largest`.
uint8_t Round(float magnitude, int mantissa, int exponent_min, float largest) {
  magnitude = std::min(magnitude, largest);
  const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), exponent_min) : exponent_min;
  // In steps of this exponent; what rounds up to the next one carries over in the bits, as well.
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, mantissa - exponent)));
  return static_cast<uint8_t>(((exponent - exponent_min) << mantissa) + steps);
}

}  // namespace

uint8_t E4m3FromFloat(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  return static_cast<uint8_t>(sign | Round(std::fabs(value), 3, -6, kE4m3Max));
}

uint8_t E2m1FromFloat(float value) {
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  return static_cast<uint8_t>(sign | Round(std::fabs(value), 1, 0, 6));
}

}  // namespace expertflow
