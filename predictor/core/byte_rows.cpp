#include "predictor/core/byte_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "common/wide.h"
#include "predictor/core/byte_matrix.h"

namespace expertflow {
namespace {

constexpr size_t kTile = 32;  // columns whose sums stay in registers
constexpr size_t kRowsMost = 1024;
constexpr float kTiny = 1e-9f;  // a part of smaller weights than this is zero

// to[c] += size * sum over the pairs, of some tiles that follow each other.
void AddTiles(const int8_t* weights, const StepRow& factors, size_t pairs, size_t tiles,
              float* to) {
  for (size_t tile = 0; tile < tiles; ++tile, to += kTile) {
    int32_t sums[kTile] = {};
    for (size_t p = 0; p < pairs; ++p, weights += 2 * kTile) {
      const int32_t first = factors.step[2 * p];
      const int32_t second = factors.step[2 * p + 1];
      for (size_t c = 0; c < kTile; ++c) {
        sums[c] += first * weights[2 * c] + second * weights[2 * c + 1];
      }
    }
    for (size_t c = 0; c < kTile; ++c) to[c] += factors.size * static_cast<float>(sums[c]);
  }
}

EXPERTFLOW_AVX2 inline __m256i Products(const int8_t* weights, __m256i steps) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights));
  return _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), steps);
}

EXPERTFLOW_AVX2 inline void AddSums(__m256i sums, __m256 size, float* to) {
  const __m256 product = _mm256_mul_ps(size, _mm256_cvtepi32_ps(sums));
  _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), product));
}

EXPERTFLOW_AVX2 void AddTilesWide(const int8_t* weights, const StepRow& factors, size_t pairs,
                                  size_t tiles, float* to) {
  const __m256 size = _mm256_set1_ps(factors.size);
  for (size_t tile = 0; tile < tiles; ++tile, to += kTile) {
    __m256i a = _mm256_setzero_si256();
    __m256i b = a;
    __m256i c = a;
    __m256i d = a;
    for (size_t p = 0; p < pairs; ++p, weights += 2 * kTile) {
      int32_t pair = 0;
      std::memcpy(&pair, factors.step + 2 * p, sizeof(pair));
      const __m256i steps = _mm256_set1_epi32(pair);
      a = _mm256_add_epi32(a, Products(weights, steps));
      b = _mm256_add_epi32(b, Products(weights + 16, steps));
      c = _mm256_add_epi32(c, Products(weights + 32, steps));
      d = _mm256_add_epi32(d, Products(weights + 48, steps));
    }
    AddSums(a, size, to);
    AddSums(b, size, to + 8);
    AddSums(c, size, to + 16);
    AddSums(d, size, to + 24);
  }
}

}  // namespace

size_t ByteRows::tiles() const {
  return (shape_.width + kTile - 1) / kTile;
}

ByteRows::ByteRows(std::span<const float> rows, const ByteRowsShape& shape)
    : shape_(shape), pairs_((shape.rows + 1) / 2) {
  CHECK(rows.size() == shape.groups * shape.rows * shape.parts * shape.width);
  CHECK(shape.rows <= kRowsMost);
  scales_.resize(shape.groups * shape.parts * shape.rows);
  values_.resize(shape.groups * shape.parts * tiles() * pairs_ * kTile * 2);
  for (size_t group = 0; group < shape.groups; ++group) {
    for (size_t r = 0; r < shape.rows; ++r) {
      for (size_t part = 0; part < shape.parts; ++part) {
        const auto from = rows.subspan(
            ((group * shape.rows + r) * shape.parts + part) * shape.width, shape.width);
        float most = 0;
        for (const float weight : from) most = std::max(most, std::abs(weight));
        if (most < kTiny) continue;
        const float scale = most / 127.0f;
        scales_[(group * shape.parts + part) * shape.rows + r] = scale;
        int8_t* to = values_.data() + (group * shape.parts + part) * tiles() * pairs_ * kTile * 2;
        for (size_t c = 0; c < shape.width; ++c) {
          const size_t pair = c / kTile * pairs_ + r / 2;
          to[(pair * kTile + c % kTile) * 2 + r % 2] =
              static_cast<int8_t>(std::lround(from[c] / scale));
        }
      }
    }
  }
}

void ByteRows::AddTo(size_t group, size_t part, size_t begin, std::span<const float> factors,
                     float* to) const {
  CHECK(factors.size() == shape_.rows && group < shape_.groups && part < shape_.parts);
  const size_t of_part = group * shape_.parts + part;
  std::array<float, kRowsMost> scaled;
  std::array<int16_t, kRowsMost + 1> steps;
  for (size_t r = 0; r < shape_.rows; ++r) {
    scaled[r] = factors[r] * scales_[of_part * shape_.rows + r];
  }
  const StepRow row = ToSteps(std::span(scaled).first(shape_.rows), steps.data());
  steps[shape_.rows] = 0;
  const auto add = __builtin_cpu_supports("avx2") ? AddTilesWide : AddTiles;
  const auto weights = [&](size_t tile) {
    return values_.data() + (of_part * tiles() + tile) * pairs_ * kTile * 2;
  };
  const size_t whole_begin = (begin + kTile - 1) / kTile;
  const size_t whole_end = shape_.width / kTile;
  // Of tiles at either end that are not added as a whole.
  const auto add_some = [&](size_t from, size_t end) {
    std::array<float, kTile> line = {};
    std::copy(to + from, to + end, line.data() + from % kTile);
    add(weights(from / kTile), row, pairs_, 1, line.data());
    std::copy_n(line.data() + from % kTile, end - from, to + from);
  };
  if (begin < whole_begin * kTile) add_some(begin, std::min(whole_begin * kTile, shape_.width));
  if (whole_begin < whole_end) {
    add(weights(whole_begin), row, pairs_, whole_end - whole_begin, to + whole_begin * kTile);
  }
  const size_t last = std::max(whole_begin, whole_end) * kTile;
  if (last < shape_.width) add_some(last, shape_.width);
}

}  // namespace expertflow
