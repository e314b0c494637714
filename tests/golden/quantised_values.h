// The values of quantised matrices, as common/dtype.h and device/ops.h describe them, one by one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/dtype.h"

namespace expertflow {

inline float ValueOfE4m3(int code) {
  const int exponent = code / 8 % 16, mantissa = code % 8;
  const double magnitude =
      exponent == 0 ? mantissa / 512.0 : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return static_cast<float>(code >= 128 ? -magnitude : magnitude);
}

inline float ValueOfE2m1(int code) {
  constexpr float kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code >= 8 ? -kValues[code - 8] : kValues[code];
}

// Element i of a quantised matrix of so many elements.
inline float QuantisedValue(const uint8_t* matrix, DType dtype, uint64_t elements, uint64_t i) {
  const uint64_t group = i / 32;
  const bool wide = dtype == DType::kInt8 || dtype == DType::kFp8;
  const uint8_t* scales = matrix + ((wide ? elements : elements / 2) + 63) / 64 * 64;
  const uint8_t* zeros = scales + elements / 32 * 4;
  float scale = 0;
  if (dtype == DType::kMxfp4) {
    scale = static_cast<float>(std::pow(2.0, scales[group] - 127));
  } else {
    std::memcpy(&scale, scales + group * 4, 4);
  }
  const int byte = matrix[i / 16 * 8 + i % 8];
  const int nibble = i % 16 < 8 ? byte & 15 : byte >> 4;
  switch (dtype) {
    case DType::kInt8: return static_cast<float>(static_cast<int8_t>(matrix[i])) * scale;
    case DType::kInt4: return static_cast<float>(nibble - 8) * scale;
    case DType::kUInt4: return static_cast<float>(nibble - zeros[group]) * scale;
    case DType::kMxfp4: return ValueOfE2m1(nibble) * scale;
    case DType::kFp8: return ValueOfE4m3(matrix[i]) * scale;
    default: return NAN;
  }
}

}  // namespace expertflow
