#include "common/dtype.h"

#include <fmt/format.h>

namespace expertflow {

std::optional<DType> CommonQuantisedType(DType a, DType b) {
  if (a == b) return a;
  const auto holds = [](DType wide, DType narrow) {
    return (narrow == DType::kInt4 && (wide == DType::kUInt4 || wide == DType::kInt8)) ||
           (narrow == DType::kUInt4 && wide == DType::kInt8);
  };
  if (holds(a, b)) return a;
  if (holds(b, a)) return b;
  return std::nullopt;
}

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kInt8: return "INT8";
    case DType::kInt4: return "INT4";
    case DType::kUInt4: return "UINT4";
    case DType::kMxfp4: return "MXFP4";
    case DType::kFp8: return "F8_E4M3";
    case DType::kQ4_1: return "Q4_1";
    case DType::kQ5_1: return "Q5_1";
    case DType::kQ4K: return "Q4_K";
    case DType::kQ5K: return "Q5_K";
    case DType::kQ6K: return "Q6_K";
  }
  return "?";
}

std::string DTypeNames(std::span<const DType> dtypes) {
  std::string names;
  for (const DType dtype : dtypes) {
    names += names.empty() ? "" : ", ";
    names += DTypeName(dtype);
  }
  return names;
}

Result<DType> ParseDType(std::string_view text) {
  if (text == "F32") return DType::kF32;
  if (text == "F16") return DType::kF16;
  if (text == "BF16") return DType::kBF16;
  return InvalidArgument(
      fmt::format("type '{}' is not supported; expected BF16, F16 or F32", text));
}

}  // namespace expertflow
