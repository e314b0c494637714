// Weights of small floats: fp8 (e4m3) with float scales as DeepSeek-V3 and Qwen3-FP8 publish them,
// and MXFP4 (e2m1 with powers of two; OCP Microscaling Formats 1.0) as gpt-oss does.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/small_floats.h"
#include "model/checkpoint/decoder_tools.h"

namespace expertflow {
namespace {

constexpr uint64_t kMxfp4Block = 32;
constexpr uint64_t kMxfp4Bytes = kMxfp4Block / 2;

std::array<float, 256> MakeE4m3Table() {
  std::array<float, 256> table{};
  for (size_t bits = 0; bits < table.size(); ++bits) {
    table[bits] = FloatFromE4m3(static_cast<uint8_t>(bits));
  }
  return table;
}

const std::array<float, 256>& E4m3Table() {
  static const std::array<float, 256> kTable = MakeE4m3Table();
  return kTable;
}

class Fp8Decoder final : public TensorDecoder, public CodeDecoder {
 public:
  Fp8Decoder(const QuantisedParts& parts, uint64_t cols, uint64_t block_rows, uint64_t block_cols)
      : parts_(parts), cols_(cols), block_rows_(block_rows), block_cols_(block_cols) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
    const std::array<float, 256>& table = E4m3Table();
    RETURN_IF_ERROR(
        ForRows(reader, rows, [&](uint64_t r, std::span<const uint8_t> bytes, const float* scales) {
          float* to = out.data() + r * cols_;
          for (uint64_t c = 0; c < cols_; ++c) to[c] = table[bytes[c]] * scales[c / block_cols_];
        }));
    return CheckFinite(*parts_.values, out);
  }

  const CodeDecoder* codes() const override {
    const bool whole_groups = cols_ % kQuantisedGroup == 0 && block_cols_ % kQuantisedGroup == 0;
    return whole_groups ? this : nullptr;
  }
  DType kept_as() const override { return DType::kFp8; }
  Status DecodeCodes(TensorReader& reader, const RowRange& rows,
                     const GroupedCodes& out) const override {
    const std::array<float, 256>& table = E4m3Table();
    const uint64_t groups = cols_ / kQuantisedGroup;
    bool finite = true;
    RETURN_IF_ERROR(
        ForRows(reader, rows, [&](uint64_t r, std::span<const uint8_t> bytes, const float* scales) {
          for (uint64_t c = 0; c < cols_; ++c) {
            finite = finite && std::isfinite(table[bytes[c]]);
            out.codes[r * cols_ + c] = static_cast<int8_t>(bytes[c]);
          }
          for (uint64_t g = 0; g < groups; ++g) {
            out.scales[r * groups + g] = scales[g * kQuantisedGroup / block_cols_];
          }
        }));
    if (!finite) return CheckFinite(*parts_.values, std::array{NAN});
    return CheckProducts(*parts_.scales, out.scales, 2 * kE4m3Max);
  }

 private:
  // Calls fn(number, bytes, scales of the blocks) for each row.
  template <typename Fn>
  Status ForRows(TensorReader& reader, const RowRange& rows, const Fn& fn) const {
    std::vector<float> scales;
    RETURN_IF_ERROR(ReadNumbers(reader, *parts_.scales, &scales));
    RETURN_IF_ERROR(CheckFinite(*parts_.scales, scales));
    const uint64_t scale_cols = (cols_ + block_cols_ - 1) / block_cols_;
    std::vector<uint8_t> bytes(cols_);
    for (uint64_t r = 0; r < rows.count; ++r) {
      const uint64_t row = rows.first + r * rows.step;
      RETURN_IF_ERROR(reader.Read(*parts_.values, row * cols_, bytes));
      fn(r, std::span<const uint8_t>(bytes), scales.data() + row / block_rows_ * scale_cols);
    }
    return OkStatus();
  }

  const QuantisedParts parts_;
  const uint64_t cols_;
  const uint64_t block_rows_;
  const uint64_t block_cols_;
};

class Mxfp4Decoder final : public TensorDecoder, public CodeDecoder {
 public:
  Mxfp4Decoder(const QuantisedParts& parts, uint64_t cols) : parts_(parts), cols_(cols) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
    RETURN_IF_ERROR(ForBytes(reader, rows, [&](uint64_t at, uint8_t byte, float scale) {
      out[at] = kE2m1[byte & 15] * scale;
      out[at + 1] = kE2m1[byte >> 4] * scale;
    }));
    return CheckFinite(*parts_.scales, out);
  }

  const CodeDecoder* codes() const override { return this; }
  DType kept_as() const override { return DType::kMxfp4; }
  Status DecodeCodes(TensorReader& reader, const RowRange& rows,
                     const GroupedCodes& out) const override {
    static_assert(kMxfp4Block == kQuantisedGroup);
    RETURN_IF_ERROR(ForBytes(reader, rows, [&](uint64_t at, uint8_t byte, float scale) {
      out.codes[at] = static_cast<int8_t>(byte & 15);
      out.codes[at + 1] = static_cast<int8_t>(byte >> 4);
      out.scales[at / kMxfp4Block] = scale;
    }));
    return CheckProducts(*parts_.scales, out.scales, kE2m1[7]);
  }

 private:
  // Calls fn(number of the first of its two elements in all rows, byte, scale) for each byte.
  template <typename Fn>
  Status ForBytes(TensorReader& reader, const RowRange& rows, const Fn& fn) const {
    const uint64_t blocks = cols_ / kMxfp4Block;
    std::vector<uint8_t> bytes(blocks * kMxfp4Bytes);
    std::vector<uint8_t> exponents(blocks);
    for (uint64_t r = 0; r < rows.count; ++r) {
      const uint64_t row = rows.first + r * rows.step;
      RETURN_IF_ERROR(reader.Read(*parts_.values, row * bytes.size(), bytes));
      RETURN_IF_ERROR(reader.Read(*parts_.scales, row * blocks, exponents));
      for (size_t i = 0; i < bytes.size(); ++i) {
        fn(r * cols_ + 2 * i, bytes[i], PowerOfTwo(exponents[i / kMxfp4Bytes]));
      }
    }
    return OkStatus();
  }

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
