// Element types of the safetensors format and of GGUF, whose quantised types come in blocks.
// Tensors of every type can be listed and read as bytes; the model computes with those that ToDType
// accepts.
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
  kGgufQ4_0,
  kGgufQ4_1,
  kGgufQ5_0,
  kGgufQ5_1,
  kGgufQ8_0,
  kGgufQ4K,
  kGgufQ5K,
  kGgufQ6K,
  kGgufMxfp4,
};

// "BF16", "F8_E4M3", ...: the spelling of safetensors. Any other text is refused by name.
Result<ElementType> ParseElementType(std::string_view text);
std::string_view ElementTypeName(ElementType type);
// Of an element, or of a block of them.
uint64_t ElementTypeBytes(ElementType type);
// Elements of a block; 1: the type has none.
uint64_t ElementTypeBlock(ElementType type);

// The same type as a DType; a type that the model cannot compute with is refused by name.
Result<DType> ToDType(ElementType type);
ElementType FromDType(DType dtype);

}  // namespace expertflow
