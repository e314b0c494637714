// Weights in memory as the kernels see them, as distinct types to overload on.
//
// REQUIRES of every function template here: instantiated only with a back end of internal linkage.
// No function that is not such a template, and nothing of the standard library: see kernel_table.h.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/kernel_table.h"

namespace expertflow::cpu {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

// 2^(exponent - 128): half of what a scale byte of kMxfp4 stands for. The two smallest are no
// normal numbers.
template <typename B>
inline float E8m0Half(uint32_t exponent) {
  return __builtin_bit_cast(float, exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23);
}

// Where element `at` of a quantised matrix lies (common/dtype.h). Rows are whole groups, so that a
// row begins `cols` elements after the one before it, as with other types.
template <typename B, DType kDType>
struct QuantisedPointer {
  const uint8_t* codes;
  const void* scales;
  const uint8_t* zeros;  // of kUInt4
  int64_t at;
  int64_t in_group = 0;  // further from there, in the same group

  QuantisedPointer operator+(int64_t n) const { return {codes, scales, zeros, at + n}; }
  // The other half of a group. REQUIRES: at the beginning of one
  QuantisedPointer SecondHalf() const { return {codes, scales, zeros, at, kLanes}; }
  const uint8_t* address() const {
    return codes + static_cast<uint64_t>(at) * CodeBits(kDType) / 8 +
           static_cast<uint64_t>(in_group) * CodeBits(kDType) / 8;
  }
  uint64_t group() const { return static_cast<uint64_t>(at) / kQuantisedGroup; }
  uint8_t zero() const { return zeros[group()]; }
  // What Load() multiplies with. e2m1 is loaded as twice its value, an integer, and e4m3 as its
  // bits in a binary16, which is a 256th of it: both leave the product as it is.
  float factor() const {
    if constexpr (kDType == DType::kMxfp4) {
      return E8m0Half<B>(static_cast<const uint8_t*>(scales)[group()]);
    }
    const float scale = static_cast<const float*>(scales)[group()];
    return kDType == DType::kFp8 ? scale * 256.0f : scale;
  }
};
template <typename B>
using Int8Pointer = QuantisedPointer<B, DType::kInt8>;
template <typename B>
using Int4Pointer = QuantisedPointer<B, DType::kInt4>;
template <typename B>
using UInt4Pointer = QuantisedPointer<B, DType::kUInt4>;
template <typename B>
using Mxfp4Pointer = QuantisedPointer<B, DType::kMxfp4>;
template <typename B>
using Fp8Pointer = QuantisedPointer<B, DType::kFp8>;

// Where element `at` of a matrix of GGUF's blocks lies (model/checkpoint/gguf_blocks.cpp has the
// formulas). Rows are whole blocks.
template <typename B, DType kDType>
struct BlockPointer {
  static constexpr int64_t kElements = static_cast<int64_t>(GroupElements(kDType));
  static constexpr int64_t kBytes = static_cast<int64_t>(BlockBytes(kDType));

  const uint8_t* blocks;
  int64_t at;

  BlockPointer operator+(int64_t n) const { return {blocks, at + n}; }
  BlockPointer SecondHalf() const { return {blocks, at + kLanes}; }
  const uint8_t* block() const {
    return blocks + static_cast<int64_t>(static_cast<uint64_t>(at) / kElements) * kBytes;
  }
  // In the block.
  int in_block() const { return static_cast<int>(static_cast<uint64_t>(at) % kElements); }
  const uint8_t* address() const { return block() + in_block() * kBytes / kElements; }
  float half(int64_t offset) const {
    F16 value;
    __builtin_memcpy(&value, block() + offset, sizeof(value));
    return B::ToFloat(value);
  }
};
template <typename B>
using Q4_1Pointer = BlockPointer<B, DType::kQ4_1>;
template <typename B>
using Q5_1Pointer = BlockPointer<B, DType::kQ5_1>;
template <typename B>
using Q4KPointer = BlockPointer<B, DType::kQ4K>;
template <typename B>
using Q5KPointer = BlockPointer<B, DType::kQ5K>;
template <typename B>
using Q6KPointer = BlockPointer<B, DType::kQ6K>;

// The scales and minima of the eight sub-blocks of Q4_K and Q5_K: 6 bits each, in twelve bytes. A
// byte for each, the first in the lowest.
template <typename B>
struct SubBlockScales {
  uint64_t scales;
  uint64_t minima;
};
template <typename B>
inline SubBlockScales<B> UnpackSubBlockScales(const uint8_t* packed) {
  uint32_t a = 0, b = 0, c = 0;
  __builtin_memcpy(&a, packed, sizeof(a));
  __builtin_memcpy(&b, packed + 4, sizeof(b));
  __builtin_memcpy(&c, packed + 8, sizeof(c));
  constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
  const uint32_t scales = (c & kFour) | (a >> 6 & kTwo) << 4;
  const uint32_t minima = (c >> 4 & kFour) | (b >> 6 & kTwo) << 4;
  return {uint64_t{scales} << 32 | (a & kSix), uint64_t{minima} << 32 | (b & kSix)};
}

// What the integers of one vector are multiplied with, and what is taken off (Q6_K: nothing).
template <typename B>
struct BlockStep {
  float step;
  float base;
};
template <typename B, DType kDType>
inline BlockStep<B> StepOf(BlockPointer<B, kDType> from) {
  if constexpr (kDType == DType::kQ4_1 || kDType == DType::kQ5_1) {
    return {from.half(0), -from.half(2)};
  } else if constexpr (kDType == DType::kQ6K) {
    const auto scale = static_cast<int8_t>(from.block()[192 + from.in_block() / kLanes]);
    return {from.half(208) * static_cast<float>(scale), 0.0f};
  } else {
    const SubBlockScales<B> packed = UnpackSubBlockScales<B>(from.block() + 4);
    const int shift = from.in_block() / 32 * 8;
    const auto scale = static_cast<float>(packed.scales >> shift & 0xff);
    const auto minimum = static_cast<float>(packed.minima >> shift & 0xff);
    return {from.half(0) * scale, from.half(2) * minimum};
  }
}

// Twice the values of e2m1.
alignas(16) constexpr int8_t kE2m1Twice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};

// Vectors of these have any number of elements; quantised ones are whole groups.
template <typename P>
inline constexpr bool kHasTails = false;
template <typename T>
inline constexpr bool kHasTails<const T*> = true;

// The last `count` elements of a vector, and zeros or what fills up its last group.
template <typename B, typename P>
inline typename B::Vec LoadTail(P from, int count) {
  if constexpr (kHasTails<P>) {
    return B::LoadPartial(from, count);
  } else {
    return B::Load(from);
  }
}

template <typename P>
inline constexpr bool kIsBlocks = false;
template <typename B, DType kDType>
inline constexpr bool kIsBlocks<BlockPointer<B, kDType>> = true;

// Reads a row from its beginning on, 16 elements at a time. Blocks are raised as a whole.
template <typename B, typename P>
class RowLoader {
 public:
  explicit RowLoader(P row) : row_(row) {}
  typename B::Vec At(int64_t i) { return B::Load(row_ + i); }

 private:
  P row_;
};
template <typename B, DType kDType>
class RowLoader<B, BlockPointer<B, kDType>> {
 public:
  explicit RowLoader(BlockPointer<B, kDType> row) : row_(row) {}
  // REQUIRES: ascending multiples of kLanes from 0 on
  typename B::Vec At(int64_t i) {
    const int64_t in_block = i % BlockPointer<B, kDType>::kElements;
    if (in_block == 0) B::RaiseBlock(row_ + i, raised_);
    return B::Load(raised_ + in_block);
  }

 private:
  BlockPointer<B, kDType> row_;
  alignas(64) float raised_[BlockPointer<B, kDType>::kElements];
};

// Calls fn with a null pointer of the element type that `dtype` names.
template <typename B, typename Fn>
inline void WithElementType(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kF32: fn(static_cast<const float*>(nullptr)); return;
    case DType::kF16: fn(static_cast<const F16*>(nullptr)); return;
    case DType::kBF16: fn(static_cast<const BF16*>(nullptr)); return;
    case DType::kInt8:
    case DType::kInt4:
    case DType::kUInt4:
    case DType::kMxfp4:
    case DType::kFp8:
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4K:
    case DType::kQ5K:
    case DType::kQ6K: return;  // matrices only
  }
}

// Calls fn with a pointer to the first element of row 0, of whatever kind the matrix is. Args:
// MatmulArgs, TransposedArgs.
template <typename B, typename Args, typename Fn>
inline void WithWeights(const Args& args, const Fn& fn) {
  const auto* codes = static_cast<const uint8_t*>(args.weight);
  const uint64_t elements =
      static_cast<uint64_t>(args.stored_rows) * static_cast<uint64_t>(args.cols);
  const int64_t at = static_cast<int64_t>(args.first_row) * args.cols;
  const uint8_t* scales = codes + ScalesOffset(args.weight_dtype, elements);
  switch (args.weight_dtype) {
    case DType::kF32: fn(static_cast<const float*>(args.weight) + at); return;
    case DType::kF16: fn(static_cast<const F16*>(args.weight) + at); return;
    case DType::kBF16: fn(static_cast<const BF16*>(args.weight) + at); return;
    case DType::kInt8: fn(Int8Pointer<B>{codes, scales, nullptr, at}); return;
    case DType::kInt4: fn(Int4Pointer<B>{codes, scales, nullptr, at}); return;
    case DType::kUInt4:
      fn(UInt4Pointer<B>{codes, scales, codes + ZerosOffset(elements), at});
      return;
    case DType::kMxfp4: fn(Mxfp4Pointer<B>{codes, scales, nullptr, at}); return;
    case DType::kFp8: fn(Fp8Pointer<B>{codes, scales, nullptr, at}); return;
    case DType::kQ4_1: fn(Q4_1Pointer<B>{codes, at}); return;
    case DType::kQ5_1: fn(Q5_1Pointer<B>{codes, at}); return;
    case DType::kQ4K: fn(Q4KPointer<B>{codes, at}); return;
    case DType::kQ5K: fn(Q5KPointer<B>{codes, at}); return;
    case DType::kQ6K: fn(Q6KPointer<B>{codes, at}); return;
  }
}

}  // namespace expertflow::cpu
