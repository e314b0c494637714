// Products of integers on AVX-512 VNNI, and for many rows on AMX-INT8. The instruction multiplies
// bytes without a sign with signed ones, so codes have none here: integers of 8 bits are 128 more,
// e2m1 is twice its value and 12 more. See scalar.cpp for what each operation has to do.
#include "device/cpu/kernels/avx512.h"

namespace expertflow::cpu {
namespace {

struct VnniInteger {
  using B = Avx512;
  struct Ints {
    __m512i v;
  };

  static constexpr int kFewRowsMax = 16;
  static constexpr int kTileRows = 8;
  static constexpr int kPanelGroups = 2;
  template <DType kDType>
  static constexpr int kZero = kDType == DType::kInt8    ? 128
                               : kDType == DType::kInt4  ? 8
                               : kDType == DType::kMxfp4 ? 12
                                                         : 0;
  template <DType kDType>
  static constexpr int kTileZero = kZero<kDType>;

  static void BeginTiles() {}
  static void EndTiles() {}

  static Ints Set(int32_t value) { return {_mm512_set1_epi32(value)}; }
  static Ints Load(const int32_t* from) { return {_mm512_loadu_si512(from)}; }
  static Ints Widen(const uint8_t* from) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
  }
  static Avx512::Vec TwoTo(const uint8_t* from) {
    const __m512i exponents = Widen(from).v;
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), exponents);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
    return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))};
  }
  static Ints Add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
  static Ints Sub(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
  static Ints Mul(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
  static Avx512::Vec ToFloats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
  static Avx512::Vec TwoHalves(float low, float high) {
    return {_mm512_insertf32x8(_mm512_set1_ps(low), _mm256_set1_ps(high), 1)};
  }

  static void Quantise(const float* x, int8_t* integers, float* step, int32_t* sum,
                       int32_t* half_sum) {
    const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + kLanes);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const auto largest_bits = static_cast<uint32_t>(_mm512_reduce_max_epi32(
        _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(high), magnitude))));
    const float largest = __builtin_bit_cast(float, largest_bits);
    __m512i first = _mm512_setzero_si512(), second = _mm512_setzero_si512();
    *step = 0;
    if (largest_bits >= kInfinityBits) {
      *step = __builtin_bit_cast(float, kNanBits);
    } else if (largest >= kLargestTooSmall) {
      *step = largest / 127.0f;
      const __m512 inverse = _mm512_set1_ps(127.0f / largest);
      first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
      second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
    }
    *half_sum = _mm512_reduce_add_epi32(first);
    *sum = *half_sum + _mm512_reduce_add_epi32(second);
    auto* to = reinterpret_cast<__m128i*>(integers);
    _mm_storeu_si128(to, _mm512_cvtepi32_epi8(first));
    _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(second));
  }
  static void Arrange(const int8_t* from, int8_t* to) { ArrangeHalves<VnniInteger, 4>(from, to); }

  template <DType kDType>
  static Ints Dots(const uint8_t* codes, const int8_t* integers) {
    if constexpr (kDType == DType::kInt8) {
      return DotsOfTwos([&](int two) {
        return MultiplyAdd(_mm512_setzero_si512(), Unsigned(codes + two * 64), integers + two * 64);
      });
    } else {
      return DotsOfFours(integers, [&](int four) { return HalvesOf<kDType>(codes + four * 64); });
    }
  }
  template <DType kDType>
  static void Raise(const uint8_t* codes, uint8_t* raised) {
    for (int four = 0; four < kChunkGroups / 4; ++four) {
      const Halves halves = HalvesOf<kDType>(codes + four * 64);
      _mm512_store_si512(raised + four * 128, halves.low);
      _mm512_store_si512(raised + four * 128 + 64, halves.high);
    }
  }
  static Ints DotsOfRaised(const uint8_t* raised, const int8_t* integers) {
    return DotsOfFours(integers, [&](int four) {
      const uint8_t* at = raised + four * 128;
      return Halves{_mm512_load_si512(at), _mm512_load_si512(at + 64)};
    });
  }

  template <DType kDType>
  static void RaiseBlocks(const uint8_t* blocks, uint8_t* raised) {
    IntegersOfBlocks<Avx512, kDType>(blocks, kChunkGroups * kGroup, raised);
  }
  static Ints DotsOfBytes(const uint8_t* raised, const int8_t* integers) {
    return DotsOfTwos([&](int two) {
      return MultiplyAdd(_mm512_setzero_si512(), _mm512_load_si512(raised + two * 64),
                         integers + two * 64);
    });
  }
  static Ints ScaledDots(const uint8_t* raised, const int8_t* integers,
                         const int16_t* half_scales) {
    const __m512i zeros = _mm512_set1_epi8(static_cast<char>(kQ6KZero));
    return DotsOfTwos([&](int two) {
      const int8_t* x = integers + two * 64;
      const __m512i dots = _mm512_sub_epi32(
          MultiplyAdd(_mm512_setzero_si512(), _mm512_load_si512(raised + two * 64), x),
          MultiplyAdd(_mm512_setzero_si512(), zeros, x));
      // Each of four scales for four sums.
      const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(half_scales + 4 * two));
      const __m512i scales = _mm512_permutexvar_epi32(
          _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
          _mm512_castsi128_si512(_mm_cvtepi16_epi32(four)));
      return _mm512_mullo_epi32(dots, scales);
    });
  }

  static void PackBytes(const uint8_t* const* rows, uint8_t* to) {
    __m512i words[kTileWeights];
    for (int r = 0; r < kTileWeights; ++r) words[r] = _mm512_loadu_si512(rows[r]);
    StoreTransposed(words, to);
  }
  template <DType kDType, int kLess = 0>
  static void PackCodes(const uint8_t* const* rows, uint8_t* to) {
    __m512i words[kTileWeights];
    for (int r = 0; r < kTileWeights; ++r) {
      words[r] =
          _mm512_sub_epi8(TwoGroups<kDType>(rows[r]), _mm512_set1_epi8(static_cast<char>(kLess)));
    }
    StoreTransposed(words, to);
  }
  template <DType kDType>
  static void TileDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                       Ints* dots) {
    WordDots<kGroup / 4>(codes, integers, row_bytes, dots);
  }
  static void TileHalfDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                           Ints* first, Ints* second) {
    WordDots<kLanes / 4>(codes, integers, row_bytes, first);
    WordDots<kLanes / 4>(codes + kLanes * kTileWeights, integers + kLanes, row_bytes, second);
  }

 private:
  // The first kWords words of a tile's group.
  template <int kWords>
  static void WordDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                       Ints* dots) {
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) dots[i].v = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int k = 0; k < kWords; ++k) {
      const __m512i w = _mm512_loadu_si512(codes + k * 4 * kTileWeights);
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        int32_t four = 0;
        __builtin_memcpy(&four, integers + i * row_bytes + k * 4, sizeof(four));
        dots[i].v = _mm512_dpbusd_epi32(dots[i].v, w, _mm512_set1_epi32(four));
      }
    }
  }
  struct Halves {
    __m512i low;
    __m512i high;
  };

  static void StoreTransposed(__m512i (&words)[kTileWeights], uint8_t* to) {
    Transpose(words);
    for (int k = 0; k < kTileWeights; ++k) {
      _mm512_storeu_si512(to + k * 4 * kTileWeights, words[k]);
    }
  }
  static __m512i Unsigned(const uint8_t* codes) {
    return _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128));
  }
  static __m512i MultiplyAdd(__m512i acc, __m512i codes, const int8_t* integers) {
    return _mm512_dpbusd_epi32(acc, codes, _mm512_loadu_si512(integers));
  }
  template <DType kDType>
  static __m512i Values(__m512i codes) {
    if constexpr (kDType == DType::kMxfp4) {
      const __m128i twice = _mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1Twice));
      const __m128i table = _mm_add_epi8(twice, _mm_set1_epi8(kZero<kDType>));
      return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
    } else {
      return codes;
    }
  }
  // The values of 64 bytes of codes.
  template <DType kDType>
  static Halves HalvesOf(const uint8_t* codes) {
    const __m512i bytes = _mm512_loadu_si512(codes);
    const __m512i mask = _mm512_set1_epi8(15);
    return {Values<kDType>(_mm512_and_si512(bytes, mask)),
            Values<kDType>(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask))};
  }
  // `sums(two)`: eight sums of each of two groups.
  template <typename Sums>
  static Ints DotsOfTwos(const Sums& sums) {
    __m512i fours[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i a = sums(2 * i), b = sums(2 * i + 1);
      fours[i] =
          _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    }
    return SumsOfGroups(fours);
  }
  // `halves(four)`: the codes of four groups, arranged.
  template <typename Source>
  static Ints DotsOfFours(const int8_t* integers, const Source& halves) {
    __m512i fours[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Halves codes = halves(i);
      const int8_t* at = integers + i * 128;
      fours[i] =
          MultiplyAdd(MultiplyAdd(_mm512_setzero_si512(), codes.low, at), codes.high, at + 64);
    }
    return SumsOfGroups(fours);
  }
  // fours[i] holds in its quarter q four sums of group 4i + q.
  static Ints SumsOfGroups(const __m512i* fours) {
    const auto add_pairs = [](__m512i a, __m512i b) {
      return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    };
    const __m512i ab = add_pairs(fours[0], fours[1]), cd = add_pairs(fours[2], fours[3]);
    const __m512i sums =
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm512_permutexvar_epi32(order, sums)};
  }
  // The codes of two groups in the order of their elements.
  template <DType kDType>
  static __m512i TwoGroups(const uint8_t* codes) {
    if constexpr (kDType == DType::kInt8) {
      return Unsigned(codes);
    } else {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
      const __m256i low = LowHalves<Avx512>(bytes), high = HighHalves<Avx512>(bytes);
      const __m512i both =
          _mm512_permutex2var_epi64(_mm512_castsi256_si512(_mm256_unpacklo_epi64(low, high)),
                                    _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                                    _mm512_castsi256_si512(_mm256_unpackhi_epi64(low, high)));
      return Values<kDType>(both);
    }
  }
};

// Tiles of 16 activation rows times 16 weight rows: bytes with a sign, for those of kUInt4 are
// small.
struct AmxInteger : VnniInteger {
  static constexpr int kTileRows = 16;
  template <DType kDType>
  static constexpr int kTileZero = 0;

  static void BeginTiles() {
    TileConfig config;
    const auto set = [&](int tile, int rows, int row_bytes) {
      config.rows[tile] = static_cast<uint8_t>(rows);
      config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
    };
    set(0, kTileRows, 4 * kTileWeights);   // sums
    set(1, kTileRows, kGroup);             // integers of activations
    set(2, kGroup / 4, 4 * kTileWeights);  // codes
    set(3, kTileRows, kLanes);             // integers of half a group
    set(4, kLanes / 4, 4 * kTileWeights);  // their codes
    MemoryIsUsed();
    _tile_loadconfig(&config);
  }
  static void EndTiles() { _tile_release(); }

  template <DType kDType>
  static void PackCodes(const uint8_t* const* rows, uint8_t* to) {
    VnniInteger::PackCodes<kDType, kZero<kDType>>(rows, to);
  }
  template <DType kDType>
  static void TileDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                       Ints* dots) {
    Multiply<false>(codes, integers, row_bytes, dots);
  }
  static void TileHalfDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                           Ints* first, Ints* second) {
    Multiply<true>(codes, integers, row_bytes, first);
    Multiply<true>(codes + kLanes * kTileWeights, integers + kLanes, row_bytes, second);
  }

 private:
  // The intrinsics want numbers of tiles to be written out.
  template <bool kHalf>
  static void Multiply(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                       Ints* dots) {
    MemoryIsUsed();
    _tile_zero(0);
    if constexpr (kHalf) {
      _tile_loadd(3, integers, row_bytes);
      _tile_loadd(4, codes, 4 * kTileWeights);
      _tile_dpbssd(0, 3, 4);
    } else {
      _tile_loadd(1, integers, row_bytes);
      _tile_loadd(2, codes, 4 * kTileWeights);
      _tile_dpbssd(0, 1, 2);
    }
    _tile_stored(0, dots, sizeof(Ints));
    MemoryIsUsed();
  }
};

}  // namespace

const PackedKernels& VnniIntegerKernels() {
  return kIntegerKernels<VnniInteger>;
}

const PackedKernels& AmxIntegerKernels() {
  return kIntegerKernels<AmxInteger>;
}

}  // namespace expertflow::cpu
