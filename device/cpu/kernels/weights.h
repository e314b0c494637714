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
      const uint32_t exponent = static_cast<const uint8_t*>(scales)[group()];
      // 2^(exponent - 128); the two smallest are no normal numbers.
      return __builtin_bit_cast(float, exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23);
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
    case DType::kFp8: return;  // matrices of linear.h only
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
  }
}

}  // namespace expertflow::cpu
