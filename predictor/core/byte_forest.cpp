#include "predictor/core/byte_forest.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "common/check.h"
#include "common/wide.h"
#include "predictor/core/byte_forest_block.h"

namespace expertflow {

using namespace byte_forest;

namespace {

constexpr size_t kTopLevels = 4;  // with so few nodes that all of them are compared
constexpr size_t kTopNodes = 15;
constexpr size_t kDepthMost = 8;      // leaves that a byte can count
constexpr size_t kAskedTogether = 4;  // features in one turn of a loop
constexpr size_t kSumsTogether = 8;

EXPERTFLOW_AVX2 inline __m256i Load(const uint8_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

EXPERTFLOW_AVX2 inline __m256i Every(uint8_t value) {
  return _mm256_set1_epi8(static_cast<char>(value));
}

// Bit `bit` of each byte of `path` to where a blend looks for it.
template <int kBit>
EXPERTFLOW_AVX2 inline __m256i Choice(__m256i path) {
  return _mm256_slli_epi16(path, 7 - kBit);
}

// Entry path[r] of a table of kTables rows of 16.
template <size_t kTables>
EXPERTFLOW_AVX2 inline __m256i LookUp(const uint8_t* table, __m256i path) {
  __m256i found[kTables];
  for (size_t t = 0; t < kTables; ++t) {
    const __m128i entries =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + t * kTableEntries));
    found[t] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), path);
  }
  if constexpr (kTables >= 2) {
    const __m256i choice = Choice<4>(path);
    for (size_t t = 0; t < kTables / 2; ++t) {
      found[t] = _mm256_blendv_epi8(found[2 * t], found[2 * t + 1], choice);
    }
  }
  if constexpr (kTables >= 4) {
    const __m256i choice = Choice<5>(path);
    for (size_t t = 0; t < kTables / 4; ++t) {
      found[t] = _mm256_blendv_epi8(found[2 * t], found[2 * t + 1], choice);
    }
  }
  if constexpr (kTables >= 8) found[0] = _mm256_blendv_epi8(found[0], found[1], Choice<6>(path));
  return found[0];
}

// One level further down.
template <size_t kTables>
EXPERTFLOW_AVX2 inline __m256i StepDown(const uint8_t* block, const uint8_t* feature,
                                        const uint8_t* place, std::span<const uint16_t> asked,
                                        __m256i path) {
  const __m256i features = LookUp<kTables>(feature, path);
  __m256i values = _mm256_setzero_si256();
  for (size_t i = 0; i < asked.size(); i += kAskedTogether) {
#pragma GCC unroll 4
    for (size_t j = 0; j < kAskedTogether; ++j) {
      const size_t row = asked[i + j];
      const __m256i here = _mm256_cmpeq_epi8(features, Load(kFeatureRows.number.data() + row));
      values = _mm256_or_si256(values, _mm256_and_si256(here, Load(block + row)));
    }
  }
  const __m256i right = _mm256_cmpgt_epi8(values, LookUp<kTables>(place, path));
  return _mm256_sub_epi8(_mm256_add_epi8(path, path), right);  // `right` is -1 or 0
}

// The path through the first four levels.
EXPERTFLOW_AVX2 inline __m256i GoDownTop(const uint8_t* block, const uint8_t* nodes) {
  __m256i right[kTopNodes];
  for (size_t n = 0; n < kTopNodes; ++n) {
    right[n] = _mm256_cmpgt_epi8(Load(block + nodes[2 * n] * kRows), Every(nodes[2 * n + 1]));
  }
  const __m256i first = right[0];
  const __m256i second = _mm256_blendv_epi8(right[1], right[2], first);
  const __m256i third = _mm256_blendv_epi8(_mm256_blendv_epi8(right[3], right[4], second),
                                           _mm256_blendv_epi8(right[5], right[6], second), first);
  __m256i last[4];
  for (size_t i = 0; i < 4; ++i) {
    last[i] = _mm256_blendv_epi8(right[7 + 2 * i], right[8 + 2 * i], third);
  }
  const __m256i fourth = _mm256_blendv_epi8(_mm256_blendv_epi8(last[0], last[1], second),
                                            _mm256_blendv_epi8(last[2], last[3], second), first);
  return _mm256_or_si256(
      _mm256_or_si256(_mm256_and_si256(first, Every(8)), _mm256_and_si256(second, Every(4))),
      _mm256_or_si256(_mm256_and_si256(third, Every(2)), _mm256_and_si256(fourth, Every(1))));
}

// How many of 16 are below `value`.
EXPERTFLOW_AVX2 inline size_t CountBelow(const float* of, __m256 value) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(of), value, _CMP_LT_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(of + 8), value, _CMP_LT_OQ));
  return static_cast<size_t>(__builtin_popcount(static_cast<unsigned>(low | high << 8)));
}

}  // namespace

ByteForest::ByteForest(const RandomForest& forest, bool avx512)
    : trees_(static_cast<size_t>(forest.trees)),
      depth_(static_cast<size_t>(forest.depth)),
      features_(static_cast<size_t>(forest.features)) {
  if (trees_ == 0 || depth_ < kTopLevels || depth_ > kDepthMost) return;
  if (!__builtin_cpu_supports("avx2")) return;
  std::vector<std::vector<float>> thresholds(features_);
  for (size_t i = 0; i < forest.feature.size(); ++i) {
    thresholds[forest.feature[i]].push_back(forest.threshold[i]);
  }
  thresholds_.assign(features_ * kPlaces, std::numeric_limits<float>::infinity());
  for (size_t f = 0; f < features_; ++f) {
    std::vector<float>& own = thresholds[f];
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    if (own.size() >= kPlaces) return;
    std::copy(own.begin(), own.end(), thresholds_.begin() + static_cast<ptrdiff_t>(f * kPlaces));
    for (size_t last = kTableEntries - 1; last < kPlaces; last += kTableEntries) {
      guides_.push_back(thresholds_[f * kPlaces + last]);
    }
  }
  for (size_t tree = 0; tree < trees_; ++tree) AddTree(forest, tree);
  fits_ = true;
  wide_ = avx512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi");
}

uint8_t ByteForest::PlaceOf(size_t feature, float threshold) const {
  const auto own = std::span(thresholds_).subspan(feature * kPlaces, kPlaces);
  const auto place = std::lower_bound(own.begin(), own.end(), threshold) - own.begin();
  return static_cast<uint8_t>(static_cast<uint8_t>(place) ^ kSign);
}

void ByteForest::AddTree(const RandomForest& forest, size_t tree) {
  const size_t first = tree * forest.nodes();
  const auto place = [&](size_t node) {
    return PlaceOf(forest.feature[first + node], forest.threshold[first + node]);
  };
  for (size_t node = 0; node < kTopNodes; ++node) {
    top_.push_back(forest.feature[first + node]);
    top_.push_back(place(node));
  }
  for (size_t depth = 0; depth < depth_; ++depth) {
    Level level = {.nodes = node_feature_.size(), .features = asked_.size()};
    const size_t begin = (size_t{1} << depth) - 1;
    for (size_t node = begin; node <= 2 * begin; ++node) {
      node_feature_.push_back(forest.feature[first + node]);
      node_place_.push_back(place(node));
    }
    const size_t used = node_feature_.size();
    node_feature_.resize(level.nodes + std::max(kTableEntries, begin + 1));
    node_place_.resize(node_feature_.size());
    std::vector<uint8_t> asked(node_feature_.begin() + static_cast<ptrdiff_t>(level.nodes),
                               node_feature_.begin() + static_cast<ptrdiff_t>(used));
    std::sort(asked.begin(), asked.end());
    asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
    // One that is asked for twice is found twice, which changes nothing.
    while (asked.size() % kAskedTogether != 0) asked.push_back(asked.back());
    for (const uint8_t f : asked) asked_.push_back(static_cast<uint16_t>(f * kRows));
    level.feature_count = asked.size();
    levels_.push_back(level);
  }
}

// [features, rows]: the rows of a feature lie together.
EXPERTFLOW_AVX2 void ByteForest::TakePlaces(std::span<const float* const> rows,
                                            uint8_t* block) const {
  for (size_t f = 0; f < features_; ++f) {
    const float* thresholds = thresholds_.data() + f * kPlaces;
    const float* guides = guides_.data() + f * kTableEntries;
    uint32_t before = 0;
    uint8_t place = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const float value = rows[r][f];
      const auto bits = std::bit_cast<uint32_t>(value);
      // Many a feature is of the token, the same for all rows.
      if (r == 0 || bits != before) {
        const __m256 all = _mm256_set1_ps(value);
        const size_t part = kTableEntries * CountBelow(guides, all);
        place = static_cast<uint8_t>(part + CountBelow(thresholds + part, all)) ^ kSign;
        before = bits;
      }
      block[f * kRows + r] = place;
    }
  }
}

EXPERTFLOW_AVX2 void ByteForest::GoDown(const uint8_t* block, uint8_t* leaves) const {
  const Level* level = levels_.data();
  for (size_t tree = 0; tree < trees_; ++tree) {
    __m256i path = GoDownTop(block, top_.data() + tree * 2 * kTopNodes);
    level += kTopLevels;
    for (size_t depth = kTopLevels; depth < depth_; ++depth, ++level) {
      const uint8_t* feature = node_feature_.data() + level->nodes;
      const uint8_t* place = node_place_.data() + level->nodes;
      const std::span<const uint16_t> asked(asked_.data() + level->features, level->feature_count);
      switch (depth) {
        case 4: path = StepDown<1>(block, feature, place, asked, path); break;
        case 5: path = StepDown<2>(block, feature, place, asked, path); break;
        case 6: path = StepDown<4>(block, feature, place, asked, path); break;
        default: path = StepDown<8>(block, feature, place, asked, path);
      }
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(leaves + tree * kRows), path);
  }
}

void ByteForest::Evaluate(std::span<const float> leaf, std::span<const float* const> rows,
                          std::span<float> out) const {
  const size_t leaves = size_t{1} << depth_;
  CHECK(fits_ && leaf.size() == trees_ * leaves && rows.size() == out.size());
  const float share = 1.0f / static_cast<float>(trees_);
  alignas(kRows) std::array<uint8_t, kForestFeaturesMax * kRows> block;
  std::fill_n(block.data(), features_ * kRows, uint8_t{0});
  alignas(kRows) std::array<uint8_t, kForestTreesMax * kRows> at;
  for (size_t first = 0; first < rows.size(); first += kRows) {
    const size_t count = std::min(kRows, rows.size() - first);
    if (wide_ && count > kHalf) {
      TakePlacesWide(rows.subspan(first, count), block.data());
      GoDownWide(block.data(), at.data());
    } else {
      TakePlaces(rows.subspan(first, count), block.data());
      for (size_t half = 0; half < count; half += kHalf) {
        GoDown(block.data() + half, at.data() + half);
      }
    }
    // Some rows at a time: each waits for its sum.
    for (size_t r = 0; r < count; r += kSumsTogether) {
      std::array<float, kSumsTogether> sums = {};
      for (size_t tree = 0; tree < trees_; ++tree) {
        const float* own = leaf.data() + tree * leaves;
        const uint8_t* path = at.data() + tree * kRows + r;
        for (size_t i = 0; i < kSumsTogether; ++i) sums[i] += own[path[i]];
      }
      for (size_t i = 0; i < std::min(kSumsTogether, count - r); ++i) {
        out[first + r + i] = sums[i] * share;
      }
    }
  }
}

}  // namespace expertflow
