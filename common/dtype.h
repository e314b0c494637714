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
};

constexpr size_t DTypeBytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}
// "F32", "F16", "BF16": the safetensors spelling.
std::string_view DTypeName(DType dtype);
// Accepts the safetensors spelling; any other type is refused by name.
Result<DType> ParseDType(std::string_view text);

}  // namespace expertflow
