#include "model/checkpoint/gguf_decoder.h"

#include <algorithm>
#include <vector>

#include "model/checkpoint/decoder_tools.h"

namespace expertflow {
namespace {

class GgufRowsDecoder final : public TensorDecoder, public CodeDecoder, public BlockDecoder {
 public:
  GgufRowsDecoder(const TensorInfo& tensor, const GgufRows& rows, uint64_t cols)
      : tensor_(tensor),
        rows_(rows),
        cols_(cols),
        row_bytes_(cols / ElementTypeBlock(tensor.type) * ElementTypeBytes(tensor.type)) {}

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
    RETURN_IF_ERROR(
        ForRows(reader, rows, [&](uint64_t first, uint64_t count, std::span<const uint8_t> bytes) {
          DecodeGgufBlocks(tensor_.type, bytes, out.subspan(first * cols_, count * cols_));
        }));
    return CheckFinite(tensor_, out);
  }

  const CodeDecoder* codes() const override { return IsKept(false) ? this : nullptr; }
  const BlockDecoder* blocks() const override { return IsKept(true) ? this : nullptr; }
  DType kept_as() const override { return *KeptGgufType(tensor_.type); }
  Status DecodeCodes(TensorReader& reader, const RowRange& rows,
                     const GroupedCodes& out) const override {
    const uint64_t groups = cols_ / kQuantisedGroup;
    RETURN_IF_ERROR(
        ForRows(reader, rows, [&](uint64_t first, uint64_t count, std::span<const uint8_t> bytes) {
          DecodeGgufCodes(tensor_.type, bytes,
                          {out.codes.subspan(first * cols_, count * cols_),
                           out.scales.subspan(first * groups, count * groups)});
        }));
    return CheckProducts(tensor_, out.scales, tensor_.type == ElementType::kGgufMxfp4 ? 6 : 256);
  }
  Status ReadBlocks(TensorReader& reader, const RowRange& rows,
                    std::span<uint8_t> out) const override {
    RETURN_IF_ERROR(
        ForRows(reader, rows, [&](uint64_t first, uint64_t, std::span<const uint8_t> bytes) {
          std::copy(bytes.begin(), bytes.end(),
                    out.begin() + static_cast<ptrdiff_t>(first * row_bytes_));
        }));
    const std::vector<float> scales = GgufBlockScales(tensor_.type, out);
    return CheckFinite(tensor_, scales);
  }

 private:
  bool IsKept(bool as_blocks) const {
    const auto kept = KeptGgufType(tensor_.type);
    return kept && IsGgufBlocks(*kept) == as_blocks;
  }

  // Calls fn(first row, rows, their bytes) for rows that lie together.
  template <typename Fn>
  Status ForRows(TensorReader& reader, const RowRange& rows, const Fn& fn) const {
    const bool together = rows_.head_rows == 0 && rows.step == 1;
    const uint64_t at_once = together ? rows.count : 1;
    std::vector<uint8_t> bytes(at_once * row_bytes_);
    for (uint64_t r = 0; r < rows.count; r += at_once) {
      const uint64_t row = rows_.first + RowInFile(rows.first + r * rows.step);
      RETURN_IF_ERROR(reader.Read(tensor_, row * row_bytes_, bytes));
      fn(r, at_once, std::span<const uint8_t>(bytes));
    }
    return OkStatus();
  }

  uint64_t RowInFile(uint64_t row) const {
    if (rows_.head_rows == 0) return row;
    const uint64_t in_head = row % rows_.head_rows, half = rows_.head_rows / 2;
    return row - in_head + in_head % half * 2 + in_head / half;
  }

  const TensorInfo& tensor_;
  const GgufRows rows_;
  const uint64_t cols_;
  const uint64_t row_bytes_;
};

class SplitKvDecoder final : public TensorDecoder {
 public:
  SplitKvDecoder(const TensorInfo& keys, const TensorInfo& values, const SplitKvShape& shape)
      : keys_(keys, {}, shape.nope), values_(values, {}, shape.rank), shape_(shape) {}

  bool reads_all() const override { return true; }

  Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const override {
    const auto [heads, nope, value, rank] = shape_;
    std::vector<float> keys(heads * rank * nope);
    std::vector<float> values(heads * value * rank);
    RETURN_IF_ERROR(keys_.Decode(reader, {.count = heads * rank}, keys));
    RETURN_IF_ERROR(values_.Decode(reader, {.count = heads * value}, values));
    for (uint64_t r = 0; r < rows.count; ++r) {
      const uint64_t row = rows.first + r * rows.step;
      const uint64_t head = row / (nope + value), in_head = row % (nope + value);
      float* to = out.data() + r * rank;
      if (in_head >= nope) {
        std::copy_n(values.data() + (head * value + in_head - nope) * rank, rank, to);
      } else {
        for (uint64_t i = 0; i < rank; ++i) to[i] = keys[(head * rank + i) * nope + in_head];
      }
    }
    return OkStatus();
  }

 private:
  const GgufRowsDecoder keys_;
  const GgufRowsDecoder values_;
  const SplitKvShape shape_;
};

}  // namespace

std::unique_ptr<TensorDecoder> MakeGgufDecoder(const TensorInfo& tensor, const GgufRows& rows,
                                               uint64_t cols) {
  return std::make_unique<GgufRowsDecoder>(tensor, rows, cols);
}

std::unique_ptr<TensorDecoder> MakeSplitKvDecoder(const TensorInfo& keys, const TensorInfo& values,
                                                  const SplitKvShape& shape) {
  return std::make_unique<SplitKvDecoder>(keys, values, shape);
}

}  // namespace expertflow
