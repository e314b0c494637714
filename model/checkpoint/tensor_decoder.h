// Computes the values of a tensor from how a checkpoint keeps it. Decoders are immutable: any
// thread may use one, with a reader of its own.
//
// Values are float32. Every format's product and sum is computed in float32; all of them are exact
// there, but for fp8 with scales that are no powers of two, which are rounded once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/dtype.h"
#include "common/status.h"
#include "model/checkpoint/quantisation.h"
#include "model/checkpoint/safetensors.h"

namespace expertflow {

// Reads bytes of a file's tensor. One thread.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  // A file that became shorter is an error. REQUIRES: the bytes lie in the tensor
  virtual Status Read(const TensorInfo& tensor, uint64_t from, std::span<uint8_t> into) = 0;
};

// Rows first, first + step, ... of a matrix, or of a tensor whose leading dimensions are joined.
struct RowRange {
  uint64_t first = 0;
  uint64_t step = 1;
  uint64_t count = 0;
};

// Rows of a tensor in a quantised type of common/dtype.h that is no block type.
struct GroupedCodes {
  // [rows, columns]: integers, their group's zero point taken off; of kMxfp4 and kFp8 the bits.
  std::span<int8_t> codes;
  std::span<float> scales;  // [rows, columns / kQuantisedGroup]
};

// Of tensors that a store can keep as they are.
class CodeDecoder {
 public:
  virtual ~CodeDecoder() = default;
  // The smallest type that holds them.
  virtual DType kept_as() const = 0;
  // The codes stand for the values of TensorDecoder::Decode, bit by bit, but for the sign of zero.
  // What is not finite is an error that names the tensor.
  virtual Status DecodeCodes(TensorReader& reader, const RowRange& rows,
                             const GroupedCodes& out) const = 0;
};

// Of tensors whose bytes are blocks that a store has a type for.
class BlockDecoder {
 public:
  virtual ~BlockDecoder() = default;
  virtual DType kept_as() const = 0;
  // out: rows.count rows of blocks. What is not finite is an error that names the tensor.
  virtual Status ReadBlocks(TensorReader& reader, const RowRange& rows,
                            std::span<uint8_t> out) const = 0;
};

class TensorDecoder {
 public:
  virtual ~TensorDecoder() = default;
  // out: [rows.count, columns]. A value that is not finite is an error that names the tensor.
  virtual Status Decode(TensorReader& reader, const RowRange& rows, std::span<float> out) const = 0;
  // Rows do not lie together in the file: better all at once.
  virtual bool reads_all() const { return false; }
  // Null: no quantised type holds the values as they are.
  virtual const CodeDecoder* codes() const { return nullptr; }
  virtual const BlockDecoder* blocks() const { return nullptr; }
};

// F32, F16 or BF16 as float32.
std::unique_ptr<TensorDecoder> MakeWideningDecoder(const TensorInfo& tensor);

// What of a tensor lies where; null: absent. The makers check shapes and types against each other
// and against [rows, cols] or `shape`; errors name the tensor.
struct QuantisedParts {
  const TensorInfo* values = nullptr;  // weight, blocks, qweight
  const TensorInfo* scales = nullptr;
  const TensorInfo* zeros = nullptr;        // qzeros
  const TensorInfo* group_index = nullptr;  // g_idx
};
Result<std::unique_ptr<TensorDecoder>> MakeFp8Decoder(const QuantisedParts& parts,
                                                      const Quantisation& quantisation,
                                                      const std::vector<int64_t>& shape);
Result<std::unique_ptr<TensorDecoder>> MakeMxfp4Decoder(const QuantisedParts& parts,
                                                        const std::vector<int64_t>& shape);
Result<std::unique_ptr<TensorDecoder>> MakeGptqDecoder(const QuantisedParts& parts,
                                                       const Quantisation& quantisation,
                                                       const std::vector<int64_t>& shape);
Result<std::unique_ptr<TensorDecoder>> MakeAwqDecoder(const QuantisedParts& parts,
                                                      const Quantisation& quantisation,
                                                      const std::vector<int64_t>& shape);

// F32, F16 or BF16 as float32. REQUIRES: `bytes` has out.size() of them
void WidenNumbers(std::span<const uint8_t> bytes, ElementType type, std::span<float> out);

// Writes values in a store's type. For BF16 and F16 they must be exact: the first that is not is
// an error.
Status EncodeValues(std::span<const float> values, DType dtype, std::span<uint8_t> out);

}  // namespace expertflow
