// The integers of GGUF's blocks, 16 at a time as bytes, for the AVX2 and AVX-512 back ends. What
// they mean is in scalar.cpp.
//
// REQUIRES of every function template here: as weights.h says.
#pragma once

#include <immintrin.h>

#include "device/cpu/kernels/weights.h"

namespace expertflow::cpu {

template <typename B>
inline __m128i SixteenBytes(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Bits [first, first + count) of each byte. Shifting pairs of bytes is as good: the mask follows.
template <typename B>
inline __m128i BitsOfBytes(__m128i bytes, int first, int mask) {
  return _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(first)),
                       _mm_set1_epi8(static_cast<char>(mask)));
}

template <typename B>
inline __m128i BlockCodes(Q4_1Pointer<B> from) {
  return BitsOfBytes<B>(SixteenBytes<B>(from.block() + 4), from.in_block() / 16 * 4, 15);
}

template <typename B>
inline __m128i BlockCodes(Q5_1Pointer<B> from) {
  const int half = from.in_block() / 16;
  const __m128i low = BitsOfBytes<B>(SixteenBytes<B>(from.block() + 8), half * 4, 15);
  // A bit for each element: spread to bytes.
  uint16_t bits = 0;
  __builtin_memcpy(&bits, from.block() + 4 + half * 2, sizeof(bits));
  const __m128i spread = _mm_shuffle_epi8(
      _mm_cvtsi32_si128(bits), _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  const __m128i places = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m128i set = _mm_cmpeq_epi8(_mm_and_si128(spread, places), places);
  return _mm_or_si128(low, _mm_and_si128(set, _mm_set1_epi8(16)));
}

template <typename B>
inline __m128i BlockCodes(Q4KPointer<B> from) {
  const int i = from.in_block();
  return BitsOfBytes<B>(SixteenBytes<B>(from.block() + 16 + i / 64 * 32 + i % 32), i / 32 % 2 * 4,
                        15);
}

template <typename B>
inline __m128i BlockCodes(Q5KPointer<B> from) {
  const int i = from.in_block();
  const __m128i low =
      BitsOfBytes<B>(SixteenBytes<B>(from.block() + 48 + i / 64 * 32 + i % 32), i / 32 % 2 * 4, 15);
  const __m128i high = BitsOfBytes<B>(SixteenBytes<B>(from.block() + 16 + i % 32), i / 32, 1);
  return _mm_or_si128(low, _mm_slli_epi16(high, 4));
}

template <typename B>
inline __m128i BlockCodes(Q6KPointer<B> from) {
  const int i = from.in_block();
  const __m128i low =
      BitsOfBytes<B>(SixteenBytes<B>(from.block() + i / 128 * 64 + i % 64), i / 64 % 2 * 4, 15);
  const __m128i high = BitsOfBytes<B>(SixteenBytes<B>(from.block() + 128 + i / 128 * 32 + i % 32),
                                      i / 32 % 4 * 2, 3);
  return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
}

// --- the integers of whole blocks as bytes without a sign (Q6_K: 32 more): to[i] is element i.

template <typename B>
inline __m256i ThirtyTwoBytes(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
template <typename B>
inline void StoreBytes(uint8_t* to, __m256i bytes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}
template <typename B>
inline __m256i LowHalves(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}
template <typename B>
inline __m256i HighHalves(__m256i bytes) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
}

// Of Q4_1 and Q5_1.
template <typename B, DType kDType>
inline void IntegersOf(BlockPointer<B, kDType> from, uint8_t* to) {
  static_assert(BlockPointer<B, kDType>::kElements == 2 * kLanes);
  StoreBytes<B>(to, _mm256_set_m128i(BlockCodes(from.SecondHalf()), BlockCodes(from)));
}

template <typename B>
inline void IntegersOf(Q4KPointer<B> from, uint8_t* to) {
#pragma GCC unroll 4
  for (int pair = 0; pair < 4; ++pair) {
    const __m256i bytes = ThirtyTwoBytes<B>(from.block() + 16 + pair * 32);
    StoreBytes<B>(to + pair * 64, LowHalves<B>(bytes));
    StoreBytes<B>(to + pair * 64 + 32, HighHalves<B>(bytes));
  }
}

template <typename B>
inline void IntegersOf(Q5KPointer<B> from, uint8_t* to) {
  __m256i fifth = ThirtyTwoBytes<B>(from.block() + 16);  // of all sub-blocks, a bit for each
  const __m256i sixteen = _mm256_set1_epi8(16);
#pragma GCC unroll 4
  for (int pair = 0; pair < 4; ++pair) {
    const __m256i bytes = ThirtyTwoBytes<B>(from.block() + 48 + pair * 32);
    const __m256i of_low = _mm256_and_si256(_mm256_slli_epi16(fifth, 4), sixteen);
    const __m256i of_high = _mm256_and_si256(_mm256_slli_epi16(fifth, 3), sixteen);
    fifth = _mm256_srli_epi16(fifth, 2);
    StoreBytes<B>(to + pair * 64, _mm256_or_si256(LowHalves<B>(bytes), of_low));
    StoreBytes<B>(to + pair * 64 + 32, _mm256_or_si256(HighHalves<B>(bytes), of_high));
  }
}

template <typename B>
inline void IntegersOf(Q6KPointer<B> from, uint8_t* to) {
  const __m256i top = _mm256_set1_epi8(48);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i first = ThirtyTwoBytes<B>(from.block() + half * 64);
    const __m256i second = ThirtyTwoBytes<B>(from.block() + half * 64 + 32);
    const __m256i high = ThirtyTwoBytes<B>(from.block() + 128 + half * 32);
    const auto put = [&](__m256i low, __m256i bits, int quarter) {
      StoreBytes<B>(to + half * 128 + quarter * 32,
                    _mm256_or_si256(low, _mm256_and_si256(bits, top)));
    };
    put(LowHalves<B>(first), _mm256_slli_epi16(high, 4), 0);
    put(LowHalves<B>(second), _mm256_slli_epi16(high, 2), 1);
    put(HighHalves<B>(first), high, 2);
    put(HighHalves<B>(second), _mm256_srli_epi16(high, 2), 3);
  }
}

// Of so many elements.
template <typename B, DType kDType>
inline void IntegersOfBlocks(const uint8_t* blocks, int64_t elements, uint8_t* to) {
  using P = BlockPointer<B, kDType>;
  for (int64_t i = 0; i < elements; i += P::kElements) IntegersOf(P{blocks, i}, to + i);
}

// --- whole blocks: to[i] is element i. B::StoreStepped() writes 16 of them.

template <typename B>
inline __m128i LowHalves(__m128i bytes) {
  return _mm_and_si128(bytes, _mm_set1_epi8(15));
}
template <typename B>
inline __m128i HighHalves(__m128i bytes) {
  return _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
}

// Of Q4_1 and Q5_1.
template <typename B, DType kDType>
inline void RaiseBlockOf(BlockPointer<B, kDType> from, float* to) {
  static_assert(BlockPointer<B, kDType>::kElements == 2 * kLanes);
  const BlockStep<B> by = StepOf(from);
  B::StoreStepped(BlockCodes(from), by, to);
  B::StoreStepped(BlockCodes(from.SecondHalf()), by, to + kLanes);
}

// Steps and bases of the eight sub-blocks of Q4_K and Q5_K.
template <typename B>
struct SubBlockSteps {
  float steps[8];
  float bases[8];
  BlockStep<B> Of(int sub) const { return {steps[sub], bases[sub]}; }
};
template <typename B, DType kDType>
inline SubBlockSteps<B> StepsOf(BlockPointer<B, kDType> from) {
  const SubBlockScales<B> packed = UnpackSubBlockScales<B>(from.block() + 4);
  const auto times = [](uint64_t bytes, float d, float* to) {
    const __m128i eight = _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
    const __m256 numbers = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
    _mm256_storeu_ps(to, _mm256_mul_ps(numbers, _mm256_set1_ps(d)));
  };
  SubBlockSteps<B> steps;
  times(packed.scales, from.half(0), steps.steps);
  times(packed.minima, from.half(2), steps.bases);
  return steps;
}

template <typename B>
inline void RaiseBlockOf(Q4KPointer<B> from, float* to) {
  const SubBlockSteps<B> by = StepsOf(from);
  const uint8_t* nibbles = from.block() + 16;
#pragma GCC unroll 4
  for (int pair = 0; pair < 4; ++pair) {
#pragma GCC unroll 2
    for (int at = 0; at < 32; at += kLanes) {
      const __m128i bytes = SixteenBytes<B>(nibbles + pair * 32 + at);
      B::StoreStepped(LowHalves<B>(bytes), by.Of(2 * pair), to + pair * 64 + at);
      B::StoreStepped(HighHalves<B>(bytes), by.Of(2 * pair + 1), to + pair * 64 + 32 + at);
    }
  }
}

template <typename B>
inline void RaiseBlockOf(Q5KPointer<B> from, float* to) {
  const SubBlockSteps<B> by = StepsOf(from);
  const uint8_t *high = from.block() + 16, *nibbles = from.block() + 48;
#pragma GCC unroll 2
  for (int at = 0; at < 32; at += kLanes) {
    __m128i fifth = SixteenBytes<B>(high + at);  // of all sub-blocks, a bit for each
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const __m128i bytes = SixteenBytes<B>(nibbles + pair * 32 + at);
      const __m128i sixteen = _mm_set1_epi8(16);
      const __m128i of_low = _mm_and_si128(_mm_slli_epi16(fifth, 4), sixteen);
      const __m128i of_high = _mm_and_si128(_mm_slli_epi16(fifth, 3), sixteen);
      fifth = _mm_srli_epi16(fifth, 2);
      B::StoreStepped(_mm_or_si128(LowHalves<B>(bytes), of_low), by.Of(2 * pair),
                      to + pair * 64 + at);
      B::StoreStepped(_mm_or_si128(HighHalves<B>(bytes), of_high), by.Of(2 * pair + 1),
                      to + pair * 64 + 32 + at);
    }
  }
}

template <typename B>
inline void RaiseBlockOf(Q6KPointer<B> from, float* to) {
  const uint8_t* block = from.block();
  const __m256 d = _mm256_set1_ps(from.half(208));
  const __m128i scales = SixteenBytes<B>(block + 192);
  float steps[16];
  _mm256_storeu_ps(steps, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)), d));
  _mm256_storeu_ps(
      steps + 8,
      _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(scales, scales))),
                    d));
  const __m128i middle = _mm_set1_epi8(32), top = _mm_set1_epi8(48);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
    for (int at = 0; at < 32; at += kLanes) {
      const __m128i first = SixteenBytes<B>(block + half * 64 + at);
      const __m128i second = SixteenBytes<B>(block + half * 64 + 32 + at);
      const __m128i high = SixteenBytes<B>(block + 128 + half * 32 + at);
      const auto put = [&](__m128i low, __m128i bits, int quarter) {
        const __m128i code = _mm_sub_epi8(_mm_or_si128(low, _mm_and_si128(bits, top)), middle);
        const int place = half * 128 + quarter * 32 + at;
        B::StoreStepped(code, {steps[place / kLanes], 0.0f}, to + place);
      };
      put(LowHalves<B>(first), _mm_slli_epi16(high, 4), 0);
      put(LowHalves<B>(second), _mm_slli_epi16(high, 2), 1);
      put(HighHalves<B>(first), high, 2);
      put(HighHalves<B>(second), _mm_srli_epi16(high, 2), 3);
    }
  }
}

}  // namespace expertflow::cpu
