// AVX2 + FMA + F16C back end: a Vec is two registers (lanes 0-7 and 8-15). See scalar.cpp for what
// each operation has to do.
#include <immintrin.h>

#include "device/cpu/kernels/block_codes.h"
#include "device/cpu/kernels/make_table.h"

namespace expertflow::cpu {
namespace {

alignas(64) constexpr int32_t kMaskTable[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                -1, -1, -1, -1, -1, 0,  0,  0,  0,  0,  0,
                                                0,  0,  0,  0,  0,  0,  0,  0,  0,  0};

struct Avx2 {
  struct Vec {
    __m256 low;
    __m256 high;
  };
  using Group = __m256;

  static constexpr const char* kName = "avx2";
  static constexpr int kGroups = 2;
  static constexpr int kAccumulators = 6;
  static constexpr int kTileRows = 3;
  static constexpr int kTileCols = 4;
  static constexpr int kBlockCols = 1024;
  static constexpr int kPanelFloats = 80 * 1024;  // fits a 512 KiB second-level cache with room

  static float ToFloat(float value) { return value; }
  static float ToFloat(BF16 value) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
  }
  static float ToFloat(F16 value) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(value.bits)));
  }

  static Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec Set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }

  static Vec Load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static Vec Load(const BF16* from) {
    const __m128i* at = reinterpret_cast<const __m128i*>(from);
    return {Raise(_mm_loadu_si128(at)), Raise(_mm_loadu_si128(at + 1))};
  }
  static Vec Load(const F16* from) {
    const __m128i* at = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
  }
  static Vec Load(Int8Pointer<Avx2> from) {
    return Scale(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from.address())), from.factor());
  }
  static Vec Load(Int4Pointer<Avx2> from) {
    // A code times the scale less eight times the scale, which is exact, is rounded once.
    const CodePairs codes = LoadCodePairs(from.address());
    const __m256 scale = _mm256_set1_ps(from.factor());
    const __m256 eight = _mm256_mul_ps(scale, _mm256_set1_ps(8));
    return {_mm256_fmsub_ps(_mm256_cvtepi32_ps(codes.low), scale, eight),
            _mm256_fmsub_ps(_mm256_cvtepi32_ps(codes.high), scale, eight)};
  }
  static Vec Load(UInt4Pointer<Avx2> from) {
    const CodePairs codes = LoadCodePairs(from.address());
    const __m256 scale = _mm256_set1_ps(from.factor());
    const __m256i zero = _mm256_set1_epi32(from.zero());
    return {_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(codes.low, zero)), scale),
            _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(codes.high, zero)), scale)};
  }
  static Vec Load(Mxfp4Pointer<Avx2> from) {
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1Twice));
    return Scale(_mm_shuffle_epi8(table, Nibbles(from.address())), from.factor());
  }
  static Vec Load(Fp8Pointer<Avx2> from) {
    const __m256i codes =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from.address())));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7f)), 7);
    const __m256i halves = _mm256_or_si256(sign, rest);
    const __m256 factor = _mm256_set1_ps(from.factor());
    return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), factor),
            _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), factor)};
  }
  template <DType kDType>
  static Vec Load(BlockPointer<Avx2, kDType> from) {
    const BlockStep<Avx2> by = StepOf(from);
    const __m128i codes = BlockCodes<Avx2>(from);
    const __m256 step = _mm256_set1_ps(by.step), base = _mm256_set1_ps(by.base);
    return {_mm256_fmsub_ps(Widen(codes), step, base),
            _mm256_fmsub_ps(Widen(_mm_unpackhi_epi64(codes, codes)), step, base)};
  }
  // to[i] = bytes[i] * step - base for 16 signed bytes.
  static void StoreStepped(__m128i bytes, BlockStep<Avx2> by, float* to) {
    const __m256 step = _mm256_set1_ps(by.step), base = _mm256_set1_ps(by.base);
    _mm256_storeu_ps(to, _mm256_fmsub_ps(Widen(bytes), step, base));
    _mm256_storeu_ps(to + 8, _mm256_fmsub_ps(Widen(_mm_unpackhi_epi64(bytes, bytes)), step, base));
  }
  // All elements of a block that `from` begins.
  template <DType kDType>
  static void RaiseBlock(BlockPointer<Avx2, kDType> from, float* to) {
    RaiseBlockOf(from, to);
  }
  static Vec LoadPartial(const float* from, int count) {
    return {_mm256_maskload_ps(from, Mask(count, 0)), _mm256_maskload_ps(from + 8, Mask(count, 8))};
  }
  template <typename Half>
  static Vec LoadPartial(const Half* from, int count) {
    Half padded[kLanes] = {};
    for (int i = 0; i < count; ++i) padded[i] = from[i];
    return Load(padded);
  }
  static void Store(float* to, Vec v) {
    _mm256_storeu_ps(to, v.low);
    _mm256_storeu_ps(to + 8, v.high);
  }
  static void StorePartial(float* to, Vec v, int count) {
    _mm256_maskstore_ps(to, Mask(count, 0), v.low);
    _mm256_maskstore_ps(to + 8, Mask(count, 8), v.high);
  }
  static Vec ZeroTail(Vec v, int count) {
    return {_mm256_and_ps(v.low, _mm256_castsi256_ps(Mask(count, 0))),
            _mm256_and_ps(v.high, _mm256_castsi256_ps(Mask(count, 8)))};
  }

  static Vec Fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Vec Add(Vec a, Vec b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Vec Sub(Vec a, Vec b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  static Vec Mul(Vec a, Vec b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Vec Div(Vec a, Vec b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  static Vec Max(Vec a, Vec b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static Vec Min(Vec a, Vec b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static Vec ShiftLeft23(Vec v) { return {Shift(v.low), Shift(v.high)}; }

  static float Reduce(Vec v) {
    __m128 quad = Quad(v);
    quad = _mm_hadd_ps(quad, quad);
    return _mm_cvtss_f32(_mm_hadd_ps(quad, quad));
  }
  static void Reduce4(Vec a, Vec b, Vec c, Vec d, float* out) {
    const __m128 ab = _mm_hadd_ps(Quad(a), Quad(b));
    const __m128 cd = _mm_hadd_ps(Quad(c), Quad(d));
    _mm_storeu_ps(out, _mm_hadd_ps(ab, cd));
  }
  static void Reduce16(const Vec* v, float* out) {
    for (int i = 0; i < kLanes; i += 4) Reduce4(v[i], v[i + 1], v[i + 2], v[i + 3], out + i);
  }
  static float ReduceMax(Vec v) {
    const __m256 eight = _mm256_max_ps(v.low, v.high);
    const __m128 quad = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }

  static Group GroupZero() { return _mm256_setzero_ps(); }
  static Group GroupLoad(const float* from) { return _mm256_loadu_ps(from); }
  static void GroupStore(float* to, Group v) { _mm256_storeu_ps(to, v); }
  static Group GroupFma(Group a, Group b, Group c) { return _mm256_fmadd_ps(a, b, c); }
  static void StoreGroup(float* to, Vec v, int group) {
    _mm256_storeu_ps(to, group == 0 ? v.low : v.high);
  }
  static Vec FromGroups(const float* first, int stride) {
    return {_mm256_loadu_ps(first), _mm256_loadu_ps(first + stride)};
  }

 private:
  // Lanes [from, from + 8) of which the first `count` of all 16 are set.
  static __m256i Mask(int count, int from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMaskTable + kLanes - count + from));
  }
  // 16 codes of 4 bits, as bytes.
  static __m128i Nibbles(const uint8_t* codes) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const __m128i both = _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4));
    return _mm_and_si128(both, _mm_set1_epi8(15));
  }
  // Sixteen codes of 4 bits, the first eight and the others.
  struct CodePairs {
    __m256i low;
    __m256i high;
  };
  static CodePairs LoadCodePairs(const uint8_t* codes) {
    const __m256i pairs =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    return {_mm256_and_si256(pairs, _mm256_set1_epi32(15)), _mm256_srli_epi32(pairs, 4)};
  }
  // Signed bytes times a number.
  static Vec Scale(__m128i bytes, float factor) {
    const __m256 factors = _mm256_set1_ps(factor);
    return {_mm256_mul_ps(Widen(bytes), factors),
            _mm256_mul_ps(Widen(_mm_unpackhi_epi64(bytes, bytes)), factors)};
  }
  // The first eight signed bytes.
  static __m256 Widen(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
  static __m256 Raise(__m128i bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
  }
  static __m256 Shift(__m256 v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 23));
  }
  static __m128 Quad(Vec v) {
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  }
};

struct Avx2Integer {
  using B = Avx2;
  struct Ints {
    __m256i low;
    __m256i high;
  };

  static constexpr int kFewRowsMax = 48;
  static constexpr int kTileRows = 4;
  static constexpr int kPanelGroups = 1;
  // Codes of 4 bits have no sign here; e2m1 is twice its value and 12 more.
  template <DType kDType>
  static constexpr int kZero = kDType == DType::kInt4 ? 8 : (kDType == DType::kMxfp4 ? 12 : 0);
  template <DType kDType>
  static constexpr int kTileZero = kZero<kDType>;

  static void BeginTiles() {}
  static void EndTiles() {}

  static Ints Set(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static Ints Load(const int32_t* from) { return {LoadBytes(from), LoadBytes(from + 8)}; }
  static Ints Widen(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static Avx2::Vec TwoTo(const uint8_t* from) {
    const Ints exponents = Widen(from);
    return {TwoTo(exponents.low), TwoTo(exponents.high)};
  }
  static Ints Add(Ints a, Ints b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
  }
  static Ints Sub(Ints a, Ints b) {
    return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
  }
  static Ints Mul(Ints a, Ints b) {
    return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
  }
  static Avx2::Vec ToFloats(Ints a) {
    return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
  }
  static Avx2::Vec TwoHalves(float low, float high) {
    return {_mm256_set1_ps(low), _mm256_set1_ps(high)};
  }

  static void Quantise(const float* x, int8_t* integers, float* step, int32_t* sum,
                       int32_t* half_sum) {
    __m256 v[4];
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + i * 8);
      const __m256i bits =
          _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff));
      most = _mm256_max_epi32(most, bits);
    }
    __m128i quad = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    quad = _mm_max_epi32(quad, _mm_shuffle_epi32(quad, 0x4e));
    quad = _mm_max_epi32(quad, _mm_shuffle_epi32(quad, 0xb1));
    const auto largest_bits = static_cast<uint32_t>(_mm_cvtsi128_si32(quad));
    const float largest = __builtin_bit_cast(float, largest_bits);
    __m256i all = _mm256_setzero_si256();
    *sum = 0;
    *half_sum = 0;
    *step = 0;
    if (largest_bits >= kInfinityBits) {
      *step = __builtin_bit_cast(float, kNanBits);
    } else if (largest >= kLargestTooSmall) {
      *step = largest / 127.0f;
      const __m256 inverse = _mm256_set1_ps(127.0f / largest);
      __m256i n[4];
      for (int i = 0; i < 4; ++i) n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
      *half_sum = SumOf(_mm256_add_epi32(n[0], n[1]));
      *sum = *half_sum + SumOf(_mm256_add_epi32(n[2], n[3]));
      all = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
      all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(integers), all);
  }
  static void Arrange(const int8_t* from, int8_t* to) { ArrangeHalves<Avx2Integer, 2>(from, to); }

  template <DType kDType>
  static Ints Dots(const uint8_t* codes, const int8_t* integers) {
    if constexpr (kDType == DType::kInt8) {
      return DotsOfGroups([&](int g) {
        return SignedDots(LoadBytes(codes + g * kGroup), LoadBytes(integers + g * kGroup));
      });
    } else {
      return DotsOfPairs(integers, [&](int pair) {
        const __m256i bytes = LoadBytes(codes + pair * kGroup);
        return Halves{Values<kDType>(LowHalves<Avx2>(bytes)),
                      Values<kDType>(HighHalves<Avx2>(bytes))};
      });
    }
  }
  template <DType kDType>
  static void Raise(const uint8_t* codes, uint8_t* raised) {
    for (int pair = 0; pair < kChunkGroups / 2; ++pair) {
      const __m256i bytes = LoadBytes(codes + pair * kGroup);
      auto* to = reinterpret_cast<__m256i*>(raised + pair * 2 * kGroup);
      _mm256_store_si256(to, Values<kDType>(LowHalves<Avx2>(bytes)));
      _mm256_store_si256(to + 1, Values<kDType>(HighHalves<Avx2>(bytes)));
    }
  }
  static Ints DotsOfRaised(const uint8_t* raised, const int8_t* integers) {
    return DotsOfPairs(integers, [&](int pair) {
      const uint8_t* at = raised + pair * 2 * kGroup;
      return Halves{LoadBytes(at), LoadBytes(at + kGroup)};
    });
  }

  template <DType kDType>
  static void RaiseBlocks(const uint8_t* blocks, uint8_t* raised) {
    IntegersOfBlocks<Avx2, kDType>(blocks, kChunkGroups * kGroup, raised);
  }
  static Ints DotsOfBytes(const uint8_t* raised, const int8_t* integers) {
    return DotsOfGroups([&](int g) {
      const __m256i pairs =
          _mm256_maddubs_epi16(LoadBytes(raised + g * kGroup), LoadBytes(integers + g * kGroup));
      return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    });
  }
  static Ints ScaledDots(const uint8_t* raised, const int8_t* integers,
                         const int16_t* half_scales) {
    return DotsOfGroups([&](int g) {
      const __m256i x = LoadBytes(integers + g * kGroup);
      const __m256i pairs =
          _mm256_sub_epi16(_mm256_maddubs_epi16(LoadBytes(raised + g * kGroup), x),
                           _mm256_maddubs_epi16(_mm256_set1_epi8(static_cast<char>(kQ6KZero)), x));
      const __m256i scales = _mm256_set_m128i(_mm_set1_epi16(half_scales[2 * g + 1]),
                                              _mm_set1_epi16(half_scales[2 * g]));
      return _mm256_madd_epi16(pairs, scales);
    });
  }

  static void PackBytes(const uint8_t* const* rows, uint8_t* to) {
    PackCodes<DType::kInt8>(rows, to);
  }
  template <DType kDType>
  static void PackCodes(const uint8_t* const* rows, uint8_t* to) {
    for (int half = 0; half < 2; ++half) {
      __m256i words[8];
      for (int r = 0; r < 8; ++r) words[r] = OneGroup<kDType>(rows[half * 8 + r]);
      Transpose(words);
      for (int k = 0; k < 8; ++k) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k * 4 * kTileWeights + half * 32),
                            words[k]);
      }
    }
  }
  template <DType kDType>
  static void TileDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                       Ints* dots) {
    WordDots<kDType, kGroup / 4>(codes, integers, row_bytes, dots);
  }
  static void TileHalfDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                           Ints* first, Ints* second) {
    WordDots<DType::kQ6K, kLanes / 4>(codes, integers, row_bytes, first);
    WordDots<DType::kQ6K, kLanes / 4>(codes + kLanes * kTileWeights, integers + kLanes, row_bytes,
                                      second);
  }

 private:
  struct Halves {
    __m256i low;
    __m256i high;
  };

  static __m256 TwoTo(__m256i exponents) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), exponents);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
  }
  static __m256i LoadBytes(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  // So many sums of two products fit 16 bits.
  template <DType kDType>
  static constexpr int kPairsThatFit =
      kDType == DType::kQ6K                                                        ? 2
      : kDType == DType::kQ5_1 || kDType == DType::kQ5K || kDType == DType::kMxfp4 ? 4
                                                                                   : 8;
  // The first kWords words of a tile's group.
  template <DType kDType, int kWords>
  static void WordDots(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                       Ints* dots) {
    __m256i low[kTileRows], high[kTileRows];
    DotsOfEight<kDType, kWords>(codes, integers, row_bytes, low);
    DotsOfEight<kDType, kWords>(codes + 32, integers, row_bytes, high);
    for (int i = 0; i < kTileRows; ++i) dots[i] = {low[i], high[i]};
  }
  // Of eight weight rows.
  template <DType kDType, int kWords>
  static void DotsOfEight(const uint8_t* codes, const int8_t* integers, int64_t row_bytes,
                          __m256i* sums) {
    constexpr int kFit = kPairsThatFit<kDType> < kWords ? kPairsThatFit<kDType> : kWords;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i acc[kTileRows];
#pragma GCC unroll 8
    for (int k = 0; k < kWords; ++k) {
      const __m256i w = LoadBytes(codes + k * 4 * kTileWeights);
#pragma GCC unroll 4
      for (int i = 0; i < kTileRows; ++i) {
        int32_t four = 0;
        __builtin_memcpy(&four, integers + i * row_bytes + k * 4, sizeof(four));
        const __m256i x = _mm256_set1_epi32(four);
        if constexpr (kDType == DType::kInt8) {
          const __m256i dots = SignedDots(w, x);
          sums[i] = k == 0 ? dots : _mm256_add_epi32(sums[i], dots);
        } else {
          const __m256i pairs = _mm256_maddubs_epi16(w, x);
          acc[i] = k % kFit == 0 ? pairs : _mm256_add_epi16(acc[i], pairs);
          if (k % kFit != kFit - 1) continue;
          const __m256i dots = _mm256_madd_epi16(acc[i], ones);
          sums[i] = k < kFit ? dots : _mm256_add_epi32(sums[i], dots);
        }
      }
    }
  }
  static int32_t SumOf(__m256i v) {
    __m128i quad = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    quad = _mm_add_epi32(quad, _mm_shuffle_epi32(quad, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(quad, _mm_shuffle_epi32(quad, 0xb1)));
  }
  // What codes of 4 bits stand for, less their zero point.
  template <DType kDType>
  static __m256i Values(__m256i codes) {
    if constexpr (kDType == DType::kMxfp4) {
      const __m128i twice = _mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1Twice));
      const __m128i table = _mm_add_epi8(twice, _mm_set1_epi8(kZero<kDType>));
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
    } else {
      return codes;
    }
  }
  // Sums of four products of signed bytes. Integers are in [-127, 127]: two products fit 16 bits.
  static __m256i SignedDots(__m256i codes, __m256i integers) {
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(integers, codes));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  // `sums(group)`: eight sums of a group.
  template <typename Sums>
  static Ints DotsOfGroups(const Sums& sums) {
    const auto eight = [&](int first) {
      __m256i pairs[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i a = sums(first + 2 * i), b = sums(first + 2 * i + 1);
        pairs[i] = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                    _mm256_permute2x128_si256(a, b, 0x31));
      }
      return SumsOfGroups(pairs);
    };
    return {eight(0), eight(8)};
  }
  // `halves(pair)`: the codes of two groups, arranged.
  template <typename Source>
  static Ints DotsOfPairs(const int8_t* integers, const Source& halves) {
    const auto eight = [&](int first) {
      __m256i pairs[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Halves codes = halves(first + i);
        const int8_t* at = integers + (first + i) * 2 * kGroup;
        const __m256i sums =
            _mm256_add_epi16(_mm256_maddubs_epi16(codes.low, LoadBytes(at)),
                             _mm256_maddubs_epi16(codes.high, LoadBytes(at + kGroup)));
        pairs[i] = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
      }
      return SumsOfGroups(pairs);
    };
    return {eight(0), eight(4)};
  }
  // pairs[i] holds four sums of group 2i and four of group 2i + 1.
  static __m256i SumsOfGroups(const __m256i* pairs) {
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(pairs[0], pairs[1]),
                                           _mm256_hadd_epi32(pairs[2], pairs[3]));
    return _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  // The codes of a group in the order of its elements.
  template <DType kDType>
  static __m256i OneGroup(const uint8_t* codes) {
    if constexpr (kDType == DType::kInt8) {
      return LoadBytes(codes);
    } else {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
      const __m128i low = LowHalves<Avx2>(bytes), high = HighHalves<Avx2>(bytes);
      return Values<kDType>(
          _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high)));
    }
  }
  // words[k] = word k of each.
  static void Transpose(__m256i* words) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = _mm256_unpacklo_epi32(words[2 * i], words[2 * i + 1]);
      a[2 * i + 1] = _mm256_unpackhi_epi32(words[2 * i], words[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        b[4 * i + 2 * j] = _mm256_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
        b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
      }
    }
    for (int k = 0; k < 4; ++k) {
      words[k] = _mm256_permute2x128_si256(b[k], b[4 + k], 0x20);
      words[4 + k] = _mm256_permute2x128_si256(b[k], b[4 + k], 0x31);
    }
  }
};

}  // namespace

const KernelTable& Avx2Kernels() {
  return kKernelTable<Avx2, &kIntegerKernels<Avx2Integer>>;
}

}  // namespace expertflow::cpu
