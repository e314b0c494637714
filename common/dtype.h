// Element types of stored tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace expertflow {

enum class DType : uint32_t {  // values are part of the store format
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  // Matrices only: a code for each element, and a scale for each kQuantisedGroup elements of a row.
  // The codes lie row by row (those of 4 bits: see device/ops.h), the scales after them,
  // likewise: float32, but for kMxfp4. A weight is
  kInt8 = 3,   // integer * scale
  kInt4 = 4,   // (code - 8) * scale
  kUInt4 = 5,  // (code - zero point) * scale; a byte for each group's zero point after the scales
  kMxfp4 = 6,  // e2m1 * 2^(byte - 127), as OCP Microscaling Formats 1.0 has it
  kFp8 = 7,    // e4m3 (no infinities) * scale
  // Matrices as blocks of GGUF's types of that name, byte by byte as in its files; a row is whole
  // blocks. A weight is what ggml's formula gives in float32.
  kQ4_1 = 8,  // integer * d + m
  kQ5_1 = 9,
  kQ4K = 10,  // (d * scale) * integer - (d_min * minimum), both of 32 elements
  kQ5K = 11,
  kQ6K = 12,  // d * scale * (integer - 32), scales of 16 elements
};

inline constexpr uint64_t kQuantisedGroup = 32;

constexpr bool IsQuantised(DType dtype) {
  return dtype >= DType::kInt8;
}

constexpr bool IsGgufBlocks(DType dtype) {
  return dtype >= DType::kQ4_1;
}

// Elements that have their scales together: a row has a whole number of them.
constexpr uint64_t GroupElements(DType dtype) {
  if (dtype >= DType::kQ4K) return 256;
  return IsQuantised(dtype) ? kQuantisedGroup : 1;
}

// REQUIRES: IsGgufBlocks(dtype)
constexpr uint64_t BlockBytes(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1: return 20;
    case DType::kQ5_1: return 24;
    case DType::kQ4K: return 144;
    case DType::kQ5K: return 176;
    default: return 210;  // kQ6K
  }
}

// Of a quantised element's code: 4 or 8. REQUIRES: no blocks, as all of the below up to MatrixBytes
constexpr uint64_t CodeBits(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kFp8 ? 8 : 4;
}

// Of an element; of a quantised one without its share of a scale, and rounded up.
constexpr size_t DTypeBytes(DType dtype) {
  if (IsQuantised(dtype)) return 1;
  return dtype == DType::kF32 ? 4 : 2;
}

// The smaller of kInt4, kUInt4 and kInt8 that holds the integers of both; of other types only equal
// ones have one.
std::optional<DType> CommonQuantisedType(DType a, DType b);

// Where the scales of a quantised matrix begin. REQUIRES: kQuantisedGroup divides `elements`
constexpr uint64_t ScalesOffset(DType dtype, uint64_t elements) {
  return (elements * CodeBits(dtype) / 8 + 63) / 64 * 64;
}
// Where the zero points of a kUInt4 matrix begin.
constexpr uint64_t ZerosOffset(uint64_t elements) {
  return ScalesOffset(DType::kUInt4, elements) + elements / kQuantisedGroup * sizeof(float);
}
// Of a whole matrix.
constexpr uint64_t MatrixBytes(DType dtype, uint64_t elements) {
  if (!IsQuantised(dtype)) return elements * DTypeBytes(dtype);
  if (IsGgufBlocks(dtype)) return elements / GroupElements(dtype) * BlockBytes(dtype);
  const uint64_t groups = elements / kQuantisedGroup;
  if (dtype == DType::kUInt4) return ZerosOffset(elements) + groups;
  return ScalesOffset(dtype, elements) + groups * (dtype == DType::kMxfp4 ? 1 : sizeof(float));
}

// The codes, scales and zero points of a quantised matrix, or its blocks; without bytes: it has
// none. What lies between them is zero.
struct MatrixPart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
constexpr std::array<MatrixPart, 3> MatrixParts(DType dtype, uint64_t elements) {
  const uint64_t all = MatrixBytes(dtype, elements);
  if (IsGgufBlocks(dtype)) return {MatrixPart{0, all}, MatrixPart{all, 0}, MatrixPart{all, 0}};
  const uint64_t scales = ScalesOffset(dtype, elements);
  const uint64_t zeros = dtype == DType::kUInt4 ? ZerosOffset(elements) : all;
  return {MatrixPart{0, elements * CodeBits(dtype) / 8}, MatrixPart{scales, zeros - scales},
          MatrixPart{zeros, all - zeros}};
}

// "F32", "F16", "BF16", "F8_E4M3": the safetensors spelling; "INT8", "INT4", "UINT4", "MXFP4";
// "Q4_K" and its like, as GGUF calls them.
std::string_view DTypeName(DType dtype);
// "INT4, INT8"
std::string DTypeNames(std::span<const DType> dtypes);
// Accepts the safetensors spelling of floats; any other type is refused by name.
Result<DType> ParseDType(std::string_view text);

}  // namespace expertflow
