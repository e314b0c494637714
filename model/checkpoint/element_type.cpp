#include "model/checkpoint/element_type.h"

#include <fmt/format.h>

namespace expertflow {
namespace {

struct Row {
  ElementType type;
  std::string_view name;
  uint64_t bytes;
  uint64_t block = 1;
};

// In the order of the enumeration.
constexpr Row kRows[] = {
    {ElementType::kBool, "BOOL", 1},
    {ElementType::kU8, "U8", 1},
    {ElementType::kI8, "I8", 1},
    {ElementType::kF8E4M3, "F8_E4M3", 1},
    {ElementType::kF8E5M2, "F8_E5M2", 1},
    {ElementType::kF8E8M0, "F8_E8M0", 1},
    {ElementType::kI16, "I16", 2},
    {ElementType::kU16, "U16", 2},
    {ElementType::kF16, "F16", 2},
    {ElementType::kBF16, "BF16", 2},
    {ElementType::kI32, "I32", 4},
    {ElementType::kU32, "U32", 4},
    {ElementType::kF32, "F32", 4},
    {ElementType::kI64, "I64", 8},
    {ElementType::kU64, "U64", 8},
    {ElementType::kF64, "F64", 8},
    {ElementType::kGgufQ4_0, "Q4_0", 18, 32},
    {ElementType::kGgufQ4_1, "Q4_1", 20, 32},
    {ElementType::kGgufQ5_0, "Q5_0", 22, 32},
    {ElementType::kGgufQ5_1, "Q5_1", 24, 32},
    {ElementType::kGgufQ8_0, "Q8_0", 34, 32},
    {ElementType::kGgufQ4K, "Q4_K", 144, 256},
    {ElementType::kGgufQ5K, "Q5_K", 176, 256},
    {ElementType::kGgufQ6K, "Q6_K", 210, 256},
    {ElementType::kGgufMxfp4, "MXFP4", 17, 32},
};

const Row& RowOf(ElementType type) {
  return kRows[static_cast<size_t>(type)];
}

}  // namespace

Result<ElementType> ParseElementType(std::string_view text) {
  for (const Row& row : kRows) {
    if (row.name == text && row.block == 1) return row.type;
  }
  constexpr size_t kShown = 40;
  return InvalidArgument(fmt::format("unknown type '{}'", text.substr(0, kShown)));
}

std::string_view ElementTypeName(ElementType type) {
  return RowOf(type).name;
}

uint64_t ElementTypeBytes(ElementType type) {
  return RowOf(type).bytes;
}

uint64_t ElementTypeBlock(ElementType type) {
  return RowOf(type).block;
}

Result<DType> ToDType(ElementType type) {
  return ParseDType(ElementTypeName(type));
}

ElementType FromDType(DType dtype) {
  switch (dtype) {
    case DType::kF32: return ElementType::kF32;
    case DType::kF16: return ElementType::kF16;
    case DType::kBF16: return ElementType::kBF16;
    default: break;  // no type of a checkpoint
  }
  return ElementType::kF32;
}

}  // namespace expertflow
