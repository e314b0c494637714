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

}  // namespace

const KernelTable& Avx2Kernels() {
  return kKernelTable<Avx2>;
}

}  // namespace expertflow::cpu
