#include "model/checkpoint/tensor_decoder.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "common/half.h"
#include "model/checkpoint/decoder_tools.h"

namespace expertflow {
namespace {

class WideningDecoder final : public TensorDecoder {
 public:
  explicit WideningDecoder(const TensorInfo& tensor) : tensor_(tensor) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
    const size_t cols = rows.count == 0 ? 0 : out.size() / rows.count;
    const uint64_t width = ElementTypeBytes(tensor_.type);
    std::vector<uint8_t> bytes(cols * width);
    for (uint64_t r = 0; r < rows.count; ++r) {
      RETURN_IF_ERROR(reader.Read(tensor_, (rows.first + r * rows.step) * bytes.size(), bytes));
      WidenNumbers(bytes, tensor_.type, out.subspan(r * cols, cols));
    }
    return OkStatus();
  }

 private:
  const TensorInfo& tensor_;
};

}  // namespace

Status CheckPart(const TensorInfo& part, std::initializer_list<ElementType> types,
                 const std::vector<int64_t>& shape) {
  if (std::find(types.begin(), types.end(), part.type) == types.end()) {
    std::string list;
    for (const ElementType type : types) {
      list += fmt::format("{}{}", list.empty() ? "" : " or ", ElementTypeName(type));
    }
    return InvalidArgument(fmt::format("tensor {}: expected {}, found {}", part.Where(), list,
                                       ElementTypeName(part.type)));
  }
  if (part.shape == shape) return OkStatus();
  return InvalidArgument(fmt::format("tensor {}: expected shape {}, found {}", part.Where(),
                                     FormatShape(shape), FormatShape(part.shape)));
}

void WidenNumbers(std::span<const uint8_t> bytes, ElementType type, std::span<float> out) {
  if (type == ElementType::kF32) {
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    out[i] = type == ElementType::kF16 ? FloatFromHalf(bits) : FloatFromBFloat16(bits);
  }
}

Status ReadNumbers(TensorReader& reader, const TensorInfo& tensor, std::vector<float>* out) {
  std::vector<uint8_t> bytes(tensor.bytes);
  RETURN_IF_ERROR(reader.Read(tensor, 0, bytes));
  out->resize(bytes.size() / ElementTypeBytes(tensor.type));
  if (tensor.type == ElementType::kF8E8M0) {
    for (size_t i = 0; i < bytes.size(); ++i) (*out)[i] = PowerOfTwo(bytes[i]);
  } else {
    WidenNumbers(bytes, tensor.type, *out);
  }
  return OkStatus();
}

Status CheckFinite(const TensorInfo& tensor, std::span<const float> values) {
  for (const float value : values) {
    if (std::isfinite(value)) continue;
    return InvalidArgument(fmt::format("tensor {}: holds {}, which is no weight", tensor.Where(),
                                       std::isnan(value) ? "NaN" : "infinity"));
  }
  return OkStatus();
}

Status CheckProducts(const TensorInfo& tensor, std::span<const float> scales, float largest) {
  for (const float scale : scales) {
    const float product = scale * largest;
    if (!std::isfinite(product)) return CheckFinite(tensor, {&product, 1});
  }
  return OkStatus();
}

std::unique_ptr<TensorDecoder> MakeWideningDecoder(const TensorInfo& tensor) {
  return std::make_unique<WideningDecoder>(tensor);
}

Status EncodeValues(std::span<const float> values, DType dtype, std::span<uint8_t> out) {
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), values.data(), out.size());
    return OkStatus();
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = dtype == DType::kF16
                              ? HalfFromFloat(values[i])
                              : static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
    const float back = dtype == DType::kF16 ? FloatFromHalf(bits) : FloatFromBFloat16(bits);
    if (back != values[i]) {
      return InvalidArgument(fmt::format("{} is no {}", values[i], DTypeName(dtype)));
    }
    std::memcpy(out.data() + 2 * i, &bits, sizeof(bits));
  }
  return OkStatus();
}

}  // namespace expertflow
