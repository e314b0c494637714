// Element types of the safetensors format. Tensors of every type can be listed and read as bytes;
// the model computes with those that ToDType accepts.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/dtype.h"
#include "common/status.h"

namespace expertflow {

enum class ElementType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

// "BF16", "F8_E4M3", ...: the format's spelling. Any other text is refused by name.
Result<ElementType> ParseElementType(std::string_view text);
std::string_view ElementTypeName(ElementType type);
uint64_t ElementTypeBytes(ElementType type);

// The same type as a DType; a type that the model cannot compute with is refused by name.
Result<DType> ToDType(ElementType type);
ElementType FromDType(DType dtype);

}  // namespace expertflow
