// AVX-512 (F, BW, VL, DQ) back end: a Vec is one register. See scalar.cpp for what each operation
// has to do. For the sources that are compiled for these instructions only, with what those for AMX
// share.
#pragma once

#include <immintrin.h>

#include "device/cpu/kernels/block_codes.h"
#include "device/cpu/kernels/integer.h"

namespace expertflow::cpu {
namespace {

struct Avx512 {
  struct Vec {
    __m512 v;
  };
  using Group = __m512;

  static constexpr const char* kName = "avx512";
  static constexpr int kGroups = 1;
  static constexpr int kAccumulators = 24;
  static constexpr int kTileRows = 6;
  static constexpr int kTileCols = 4;
  static constexpr int kBlockCols = 1024;
  static constexpr int kPanelFloats = 208 * 1024;  // fits a 1 MiB second-level cache with room

  static float ToFloat(float value) { return value; }
  static float ToFloat(BF16 value) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
  }
  static float ToFloat(F16 value) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(value.bits)));
  }

  static Vec Zero() { return {_mm512_setzero_ps()}; }
  static Vec Set(float value) { return {_mm512_set1_ps(value)}; }

  static Vec Load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vec Load(const BF16* from) {
    return {Raise(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static Vec Load(const F16* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static Vec Load(Int8Pointer<Avx512> from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.address()));
    return Scale(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), from.factor());
  }
  static Vec Load(Int4Pointer<Avx512> from) {
    const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return Scale(LookUp(from.address(), table), from.factor());
  }
  static Vec Load(UInt4Pointer<Avx512> from) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 zero = _mm512_set1_ps(from.zero());
    return Scale(_mm512_sub_ps(LookUp(from.address(), table), zero), from.factor());
  }
  static Vec Load(Mxfp4Pointer<Avx512> from) {
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1Twice));
    const __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(table));
    return Scale(LookUp(from.address(), values), from.factor());
  }
  static Vec Load(Fp8Pointer<Avx512> from) {
    const __m256i codes =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from.address())));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7f)), 7);
    return Scale(_mm512_cvtph_ps(_mm256_or_si256(sign, rest)), from.factor());
  }
  template <DType kDType>
  static Vec Load(BlockPointer<Avx512, kDType> from) {
    const BlockStep<Avx512> by = StepOf(from);
    const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(BlockCodes<Avx512>(from)));
    return {_mm512_fmsub_ps(codes, _mm512_set1_ps(by.step), _mm512_set1_ps(by.base))};
  }
  // to[i] = bytes[i] * step - base for 16 signed bytes.
  static void StoreStepped(__m128i bytes, BlockStep<Avx512> by, float* to) {
    const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    _mm512_storeu_ps(to, _mm512_fmsub_ps(codes, _mm512_set1_ps(by.step), _mm512_set1_ps(by.base)));
  }
  // All elements of a block that `from` begins.
  template <DType kDType>
  static void RaiseBlock(BlockPointer<Avx512, kDType> from, float* to) {
    RaiseBlockOf(from, to);
  }
  static Vec LoadPartial(const float* from, int count) {
    return {_mm512_maskz_loadu_ps(Mask(count), from)};
  }
  static Vec LoadPartial(const BF16* from, int count) {
    return {Raise(_mm256_maskz_loadu_epi16(Mask(count), from))};
  }
  static Vec LoadPartial(const F16* from, int count) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(Mask(count), from))};
  }
  static void Store(float* to, Vec a) { _mm512_storeu_ps(to, a.v); }
  static void StorePartial(float* to, Vec a, int count) {
    _mm512_mask_storeu_ps(to, Mask(count), a.v);
  }
  static Vec ZeroTail(Vec a, int count) { return {_mm512_maskz_mov_ps(Mask(count), a.v)}; }

  static Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec Add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec Sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vec Mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec Div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec ShiftLeft23(Vec a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
  }

  static float Reduce(Vec a) {
    __m128 quad = Quad(a);
    quad = _mm_hadd_ps(quad, quad);
    return _mm_cvtss_f32(_mm_hadd_ps(quad, quad));
  }
  static void Reduce4(Vec a, Vec b, Vec c, Vec d, float* out) {
    const __m512 quads = Quads(a, b, c, d);
    const __m512 pairs = _mm512_add_ps(quads, _mm512_permute_ps(quads, 0xb1));
    const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4e));
    const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(places, sums)));
  }
  static void Reduce16(const Vec* v, float* out) {
    const __m512 a = Quads(v[0], v[4], v[8], v[12]), b = Quads(v[1], v[5], v[9], v[13]);
    const __m512 c = Quads(v[2], v[6], v[10], v[14]), d = Quads(v[3], v[7], v[11], v[15]);
    _mm512_storeu_ps(out, AddNeighbours(AddNeighbours(a, b), AddNeighbours(c, d)));
  }
  static float ReduceMax(Vec a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 quad = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }

  static Group GroupZero() { return _mm512_setzero_ps(); }
  static Group GroupLoad(const float* from) { return _mm512_loadu_ps(from); }
  static void GroupStore(float* to, Group v) { _mm512_storeu_ps(to, v); }
  static Group GroupFma(Group a, Group b, Group c) { return _mm512_fmadd_ps(a, b, c); }
  static void StoreGroup(float* to, Vec a, int) { _mm512_storeu_ps(to, a.v); }
  static Vec FromGroups(const float* first, int) { return Load(first); }

 private:
  static __mmask16 Mask(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
  static Vec Scale(__m512 values, float factor) {
    return {_mm512_mul_ps(values, _mm512_set1_ps(factor))};
  }
  // Entries of a table by 16 codes of 4 bits. The instruction looks at the lowest four bits of each
  // lane only.
  static __m512 LookUp(const uint8_t* codes, __m512 table) {
    const __m512i shifts = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    const __m128i twice = _mm_castpd_si128(_mm_loaddup_pd(reinterpret_cast<const double*>(codes)));
    const __m512i places = _mm512_srlv_epi32(_mm512_cvtepu8_epi32(twice), shifts);
    return _mm512_permutexvar_ps(places, table);
  }
  static __m512 Raise(__m256i bf16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
  }
  // The four quads of Quad().
  static __m512 Quads(Vec a, Vec b, Vec c, Vec d) {
    const auto eights = [](Vec x, Vec y) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(x.v, y.v, 0x44),
                           _mm512_shuffle_f32x4(x.v, y.v, 0xee));
    };
    const __m512 ab = eights(a, b), cd = eights(c, d);
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }
  // As _mm_hadd_ps does, in each quad.
  static __m512 AddNeighbours(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  }
  static __m128 Quad(Vec a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  }
};

// rows[i] = (rows[0][i], rows[1][i], ...)
inline void Transpose(__m512i (&rows)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  // b[4g + c] holds in its quarter q column 4q + c of rows 4g..4g+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i low23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i high23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    rows[4 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

// Of AMX.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The tile intrinsics do not tell the compiler what memory they read and write.
inline void MemoryIsUsed() {
  __asm__ volatile("" ::: "memory");
}

}  // namespace
}  // namespace expertflow::cpu
