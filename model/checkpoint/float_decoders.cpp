// Weights of small floats: fp8 (e4m3) with float scales as DeepSeek-V3 and Qwen3-FP8 publish them,
// and MXFP4 (e2m1 with powers of two; OCP Microscaling Formats 1.0) as gpt-oss does.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "model/checkpoint/decoder_tools.h"

namespace expertflow {
namespace {

constexpr uint64_t kMxfp4Block = 32;
constexpr uint64_t kMxfp4Bytes = kMxfp4Block / 2;

// 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities; 0x7f and 0xff are NaN.
std::array<float, 256> MakeE4m3Table() {
  std::array<float, 256> table{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = (bits >> 3) & 15;
    const int mantissa = bits & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if (exponent == 15 && mantissa == 7) value = NAN;
    table[static_cast<size_t>(bits)] = (bits & 0x80) != 0 ? -value : value;
  }
  return table;
}

const std::array<float, 256>& E4m3Table() {
  static const std::array<float, 256> kTable = MakeE4m3Table();
  return kTable;
}

class Fp8Decoder final : public TensorDecoder {
 public:
  Fp8Decoder(const QuantisedParts& parts, uint64_t cols, uint64_t block_rows, uint64_t block_cols)
      : parts_(parts), cols_(cols), block_rows_(block_rows), block_cols_(block_cols) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
    const std::array<float, 256>& table = E4m3Table();
    std::vector<float> scales;
    RETURN_IF_ERROR(ReadNumbers(reader, *parts_.scales, &scales));
    RETURN_IF_ERROR(CheckFinite(*parts_.scales, scales));
    const uint64_t scale_cols = (cols_ + block_cols_ - 1) / block_cols_;
    std::vector<uint8_t> bytes(cols_);
    for (uint64_t r = 0; r < rows.count; ++r) {
      const uint64_t row = rows.first + r * rows.step;
      RETURN_IF_ERROR(reader.Read(*parts_.values, row * cols_, bytes));
      const float* row_scales = scales.data() + row / block_rows_ * scale_cols;
      float* to = out.data() + r * cols_;
      for (uint64_t c = 0; c < cols_; ++c) to[c] = table[bytes[c]] * row_scales[c / block_cols_];
    }
    return CheckFinite(*parts_.values, out);
  }

 private:
  const QuantisedParts parts_;
  const uint64_t cols_;
  const uint64_t block_rows_;
  const uint64_t block_cols_;
};

class Mxfp4Decoder final : public TensorDecoder {
 public:
  Mxfp4Decoder(const QuantisedParts& parts, uint64_t cols) : parts_(parts), cols_(cols) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
    const uint64_t blocks = cols_ / kMxfp4Block;
    std::vector<uint8_t> bytes(blocks * kMxfp4Bytes);
    std::vector<uint8_t> exponents(blocks);
    for (uint64_t r = 0; r < rows.count; ++r) {
      const uint64_t row = rows.first + r * rows.step;
      RETURN_IF_ERROR(reader.Read(*parts_.values, row * bytes.size(), bytes));
      RETURN_IF_ERROR(reader.Read(*parts_.scales, row * blocks, exponents));
      float* to = out.data() + r * cols_;
      for (size_t i = 0; i < bytes.size(); ++i) {
        const float scale = PowerOfTwo(exponents[i / kMxfp4Bytes]);
        to[2 * i] = kE2m1[bytes[i] & 15] * scale;
        to[2 * i + 1] = kE2m1[bytes[i] >> 4] * scale;
      }
    }
    return CheckFinite(*parts_.scales, out);
  }

 private:
  const QuantisedParts parts_;
  const uint64_t cols_;
};

// Of a scale that is there once: [], [1] or [1, 1].
bool IsOne(const std::vector<int64_t>& shape) {
  return shape.size() <= 2 &&
         std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size == 1; });
}

}  // namespace

Result<std::unique_ptr<TensorDecoder>> MakeFp8Decoder(const QuantisedParts& parts,
                                                      const Quantisation& quantisation,
                                                      const std::vector<int64_t>& shape) {
  RETURN_IF_ERROR(CheckPart(*parts.values, {ElementType::kF8E4M3}, shape));
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
    return InvalidArgument(fmt::format("tensor {}: F8_E4M3 is supported for matrices, found {}",
                                       parts.values->Where(), FormatShape(shape)));
  }
  std::vector<int64_t> scale_shape = parts.scales->shape;
  int64_t block_rows = shape[0], block_cols = shape[1];
  if (quantisation.block_rows > 0) {
    block_rows = quantisation.block_rows;
    block_cols = quantisation.block_cols;
    scale_shape = {(shape[0] + block_rows - 1) / block_rows,
                   (shape[1] + block_cols - 1) / block_cols};
  } else if (!IsOne(scale_shape)) {
    scale_shape = {1};
  }
  RETURN_IF_ERROR(
      CheckPart(*parts.scales,
                {ElementType::kF32, ElementType::kBF16, ElementType::kF16, ElementType::kF8E8M0},
                scale_shape)
          .WithContext(fmt::format("scales of '{}' for blocks of {} x {}", parts.values->name,
                                   block_rows, block_cols)));
  return std::unique_ptr<TensorDecoder>(std::make_unique<Fp8Decoder>(
      parts, static_cast<uint64_t>(shape[1]), static_cast<uint64_t>(block_rows),
      static_cast<uint64_t>(block_cols)));
}

Result<std::unique_ptr<TensorDecoder>> MakeMxfp4Decoder(const QuantisedParts& parts,
                                                        const std::vector<int64_t>& shape) {
  const int64_t cols = shape.back();
  if (cols % static_cast<int64_t>(kMxfp4Block) != 0) {
    return InvalidArgument(fmt::format("tensor {}: blocks of {} do not divide rows of {}",
                                       parts.values->Where(), kMxfp4Block, cols));
  }
  std::vector<int64_t> scale_shape = shape;
  scale_shape.back() = cols / static_cast<int64_t>(kMxfp4Block);
  std::vector<int64_t> block_shape = scale_shape;
  block_shape.push_back(kMxfp4Bytes);
  RETURN_IF_ERROR(CheckPart(*parts.values, {ElementType::kU8}, block_shape));
  RETURN_IF_ERROR(CheckPart(*parts.scales, {ElementType::kU8, ElementType::kF8E8M0}, scale_shape));
  return std::unique_ptr<TensorDecoder>(
      std::make_unique<Mxfp4Decoder>(parts, static_cast<uint64_t>(cols)));
}

}  // namespace expertflow
