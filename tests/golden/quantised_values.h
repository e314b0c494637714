// The values of quantised matrices, as common/dtype.h and device/ops.h describe them, one by one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/dtype.h"
#include "common/half.h"

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

// Element i of a matrix of GGUF's blocks is scale * integer + minimum. Of Q6_K the integer scales
// of 16 elements are part of the integer.
struct BlockParts {
  double scale = 0;
  int integer = 0;
  double minimum = 0;
};
inline BlockParts GgufBlockParts(const uint8_t* matrix, DType dtype, uint64_t i) {
  const uint64_t size = dtype < DType::kQ4K ? 32 : 256;
  const uint64_t bytes[] = {20, 24, 144, 176, 210};
  const uint8_t* block = matrix + i / size * bytes[static_cast<int>(dtype) - 8];
  i %= size;
  const auto half = [&](int at) {
    uint16_t bits = 0;
    std::memcpy(&bits, block + at, sizeof(bits));
    return double{FloatFromHalf(bits)};
  };
  if (size == 32) {  // d, m, perhaps fifth bits, nibbles: the first 16 elements, then the others
    const uint8_t* nibbles = block + (dtype == DType::kQ5_1 ? 8 : 4);
    int q = i < 16 ? nibbles[i] % 16 : nibbles[i - 16] / 16;
    if (dtype == DType::kQ5_1) q += block[4 + i / 8] >> (i % 8) & 1 ? 16 : 0;
    return {half(0), q, half(2)};
  }
  if (dtype == DType::kQ6K) {
    const uint64_t part = i / 128, quarter = i % 128 / 32, at = i % 32;
    const int byte = block[part * 64 + quarter % 2 * 32 + at];
    const int low = quarter < 2 ? byte % 16 : byte / 16;
    const int high = block[128 + part * 32 + at] >> (2 * quarter) & 3;
    return {half(208), static_cast<int8_t>(block[192 + i / 16]) * (low + 16 * high - 32), 0};
  }
  const uint64_t sub = i / 32, at = i % 32;
  const uint8_t* packed = block + 4;
  int scale = packed[sub] & 63, minimum = packed[sub + 4] & 63;
  if (sub >= 4) {
    scale = packed[sub + 4] % 16 + packed[sub - 4] / 64 * 16;
    minimum = packed[sub + 4] / 16 + packed[sub] / 64 * 16;
  }
  const bool five = dtype == DType::kQ5K;
  const int byte = block[(five ? 48 : 16) + sub / 2 * 32 + at];
  int q = sub % 2 == 0 ? byte % 16 : byte / 16;
  if (five) q += block[16 + at] >> sub & 1 ? 16 : 0;
  return {half(0) * scale, q, -half(2) * minimum};
}

// Exact as a double, then rounded once.
inline float GgufBlockValue(const uint8_t* matrix, DType dtype, uint64_t i) {
  const BlockParts parts = GgufBlockParts(matrix, dtype, i);
  return static_cast<float>(parts.scale * parts.integer + parts.minimum);
}

// Element i of a quantised matrix of so many elements.
inline float QuantisedValue(const uint8_t* matrix, DType dtype, uint64_t elements, uint64_t i) {
  if (IsGgufBlocks(dtype)) return GgufBlockValue(matrix, dtype, i);
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
