// Element types of stored tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace expertflow {

enum class DType : uint32_t {  // values are part of the store format
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  // Matrices of experts only: integers, and a float32 scale for each kQuantisedGroup elements of a
  // row. The integers lie row by row (kInt4: see device/ops.h), the scales after them, likewise.
  kInt8 = 3,
  kInt4 = 4,
};

inline constexpr uint64_t kQuantisedGroup = 32;

constexpr bool IsQuantised(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt4;
}

// Of an element; of a quantised one without its share of a scale, and rounded up.
constexpr size_t DTypeBytes(DType dtype) {
  if (IsQuantised(dtype)) return 1;
  return dtype == DType::kF32 ? 4 : 2;
}

// Where the scales of a quantised matrix begin. REQUIRES: kQuantisedGroup divides `elements`
constexpr uint64_t ScalesOffset(DType dtype, uint64_t elements) {
  const uint64_t bytes = dtype == DType::kInt4 ? elements / 2 : elements;
  return (bytes + 63) / 64 * 64;
}
// Of a whole matrix.
constexpr uint64_t MatrixBytes(DType dtype, uint64_t elements) {
  if (!IsQuantised(dtype)) return elements * DTypeBytes(dtype);
  return ScalesOffset(dtype, elements) + elements / kQuantisedGroup * sizeof(float);
}

// "F32", "F16", "BF16": the safetensors spelling; "INT8", "INT4".
std::string_view DTypeName(DType dtype);
// Accepts the safetensors spelling of floats; any other type is refused by name.
Result<DType> ParseDType(std::string_view text);

}  // namespace expertflow
