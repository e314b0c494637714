// Decoders for the tensors of a GGUF file: rows of another one, in another order, or put together
// from two.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/checkpoint/tensor_decoder.h"

namespace expertflow {

// Which rows of a file's tensor make up a matrix.
struct GgufRows {
  uint64_t first = 0;
  // > 0: in each head of so many rows, row i and row i + head_rows / 2 of the matrix lie together
  // in the file, as the "llama" architecture stores queries and keys.
  uint64_t head_rows = 0;
};

// Blocks of one of GGUF's types, or F32, F16, BF16. REQUIRES: `bytes` has those of out.size()
// elements
void DecodeGgufBlocks(ElementType type, std::span<const uint8_t> bytes, std::span<float> out);

// The quantised type that holds the blocks of `type` as they are.
std::optional<DType> KeptGgufType(ElementType type);
// The binary16 scales (and minima) of blocks that a store keeps as blocks: all of a block's values
// are finite when they are. REQUIRES: IsGgufBlocks(*KeptGgufType(type))
std::vector<float> GgufBlockScales(ElementType type, std::span<const uint8_t> blocks);
// Codes and scales of the others. REQUIRES: KeptGgufType(type), no block type
void DecodeGgufCodes(ElementType type, std::span<const uint8_t> bytes, const GroupedCodes& out);

std::unique_ptr<TensorDecoder> MakeGgufDecoder(const TensorInfo& tensor, const GgufRows& rows,
                                               uint64_t cols);

// kv_b_proj [heads * (nope + value), rank] from keys [heads, rank, nope] and values
// [heads, value, rank], as newer files keep it.
struct SplitKvShape {
  uint64_t heads = 0;
  uint64_t nope = 0;
  uint64_t value = 0;
  uint64_t rank = 0;
};
std::unique_ptr<TensorDecoder> MakeSplitKvDecoder(const TensorInfo& keys, const TensorInfo& values,
                                                  const SplitKvShape& shape);

}  // namespace expertflow
