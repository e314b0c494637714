// A whole block in one register: what looks up a node finds any of 128, and comparisons give masks.
#include <immintrin.h>

#include <bit>

#include "predictor/core/byte_forest.h"
#include "predictor/core/byte_forest_block.h"

// See EXPERTFLOW_AVX2 in common/wide.h.
#define EXPERTFLOW_AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi,popcnt")))

namespace expertflow {

using namespace byte_forest;

namespace {

// For forms with a mask: of those without one, g++ 12 warns about its own header.
constexpr __mmask8 kAll8 = UINT8_MAX;
constexpr __mmask16 kAll16 = UINT16_MAX;
constexpr __mmask64 kAll64 = UINT64_MAX;

EXPERTFLOW_AVX512 inline __m512i LookUp16(const uint8_t* table, __m512i path) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(kAll16, entries), path);
}

EXPERTFLOW_AVX512 inline __m512i LookUp32(const uint8_t* table, __m512i path) {
  const __m256i entries = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  return _mm512_maskz_permutexvar_epi8(kAll64, path, _mm512_maskz_broadcast_i64x4(kAll8, entries));
}

EXPERTFLOW_AVX512 inline __m512i LookUp64(const uint8_t* table, __m512i path) {
  return _mm512_maskz_permutexvar_epi8(kAll64, path, _mm512_loadu_si512(table));
}

EXPERTFLOW_AVX512 inline __m512i LookUp128(const uint8_t* table, __m512i path) {
  return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), path,
                                  _mm512_loadu_si512(table + kRows));
}

// Entry path[r] of the table of a level's nodes.
EXPERTFLOW_AVX512 inline __m512i LookUp(const uint8_t* table, size_t depth, __m512i path) {
  switch (depth) {
    case 5: return LookUp32(table, path);
    case 6: return LookUp64(table, path);
    case 7: return LookUp128(table, path);
    default: return LookUp16(table, path);
  }
}

// How many of 16 are below `value`.
EXPERTFLOW_AVX512 inline size_t CountBelow(const float* of, __m512 value) {
  const __mmask16 below = _mm512_cmp_ps_mask(_mm512_loadu_ps(of), value, _CMP_LT_OQ);
  return static_cast<size_t>(__builtin_popcount(below));
}

}  // namespace

// [features, rows]: the rows of a feature lie together.
EXPERTFLOW_AVX512 void ByteForest::TakePlacesWide(std::span<const float* const> rows,
                                                  uint8_t* block) const {
  for (size_t f = 0; f < features_; ++f) {
    const float* thresholds = thresholds_.data() + f * kPlaces;
    const float* guides = guides_.data() + f * kTableEntries;
    uint32_t before = 0;
    uint8_t place = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const float value = rows[r][f];
      const auto bits = std::bit_cast<uint32_t>(value);
      if (r == 0 || bits != before) {  // as in TakePlaces()
        const __m512 all = _mm512_set1_ps(value);
        const size_t part = kTableEntries * CountBelow(guides, all);
        place = static_cast<uint8_t>(part + CountBelow(thresholds + part, all)) ^ kSign;
        before = bits;
      }
      block[f * kRows + r] = place;
    }
  }
}

EXPERTFLOW_AVX512 void ByteForest::GoDownWide(const uint8_t* block, uint8_t* leaves) const {
  const Level* level = levels_.data();
  const __m512i one = _mm512_set1_epi8(1);
  for (size_t tree = 0; tree < trees_; ++tree) {
    __m512i path = _mm512_setzero_si512();
    for (size_t depth = 0; depth < depth_; ++depth, ++level) {
      const __m512i features = LookUp(node_feature_.data() + level->nodes, depth, path);
      const uint16_t* asked = asked_.data() + level->features;
      __m512i values = _mm512_setzero_si512();
      for (size_t i = 0; i < level->feature_count; ++i) {
        const __mmask64 here = _mm512_cmpeq_epi8_mask(
            features, _mm512_load_si512(kFeatureRows.number.data() + asked[i]));
        values = _mm512_mask_loadu_epi8(values, here, block + asked[i]);
      }
      const __m512i places = LookUp(node_place_.data() + level->nodes, depth, path);
      const __mmask64 right = _mm512_cmpgt_epi8_mask(values, places);
      path = _mm512_add_epi8(path, path);
      path = _mm512_mask_add_epi8(path, right, path, one);
    }
    _mm512_store_si512(leaves + tree * kRows, path);
  }
}

}  // namespace expertflow
