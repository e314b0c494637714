#include "predictor/dense.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "common/wide.h"

namespace expertflow::dense {
namespace {

constexpr size_t kBlock = 64;     // of triangular matrices
constexpr size_t kColumns = 256;  // of the output that stay in the first cache
constexpr size_t kDepth = 128;    // of the sum before the next columns

// c[0..3][n] += s0 * b0 + s1 * b1 + s2 * b2 + s3 * b3 for one row of c.
EXPERTFLOW_WIDE void AddFour(const float* scales, const float* b, size_t b_stride, size_t n,
                             float* c) {
  const float s0 = scales[0];
  const float s1 = scales[1];
  const float s2 = scales[2];
  const float s3 = scales[3];
  const float* b0 = b;
  const float* b1 = b + b_stride;
  const float* b2 = b + 2 * b_stride;
  const float* b3 = b + 3 * b_stride;
  for (size_t j = 0; j < n; ++j) {
    c[j] += s0 * b0[j] + s1 * b1[j] + s2 * b2[j] + s3 * b3[j];
  }
}

}  // namespace

EXPERTFLOW_WIDE void AddScaled(float scale, const float* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) to[i] += scale * from[i];
}

void AddProduct(float scale, const float* a, size_t a_stride, const float* b, size_t b_stride,
                size_t m, size_t n, size_t k, float* c, size_t c_stride) {
  for (size_t k0 = 0; k0 < k; k0 += kDepth) {
    const size_t k1 = std::min(k, k0 + kDepth);
    for (size_t n0 = 0; n0 < n; n0 += kColumns) {
      const size_t width = std::min(kColumns, n - n0);
      for (size_t i = 0; i < m; ++i) {
        float* row = c + i * c_stride + n0;
        const float* scales = a + i * a_stride;
        size_t p = k0;
        for (; p + 4 <= k1; p += 4) {
          const float four[4] = {scale * scales[p], scale * scales[p + 1], scale * scales[p + 2],
                                 scale * scales[p + 3]};
          AddFour(four, b + p * b_stride + n0, b_stride, width, row);
        }
        for (; p < k1; ++p) AddScaled(scale * scales[p], b + p * b_stride + n0, width, row);
      }
    }
  }
}

void SubtractProductTransposed(const float* a, size_t a_stride, const float* b, size_t b_stride,
                               size_t m, size_t n, size_t k, float* c, size_t c_stride) {
  std::vector<float> turned(k * n);
  for (size_t j = 0; j < n; ++j) {
    for (size_t p = 0; p < k; ++p) turned[p * n + j] = b[j * b_stride + p];
  }
  AddProduct(-1, a, a_stride, turned.data(), n, m, n, k, c, c_stride);
}

bool Cholesky(size_t n, float* a, size_t stride) {
  for (size_t k0 = 0; k0 < n; k0 += kBlock) {
    const size_t k1 = std::min(n, k0 + kBlock);
    for (size_t j = k0; j < k1; ++j) {
      float* row = a + j * stride;
      for (size_t i = k0; i <= j; ++i) {
        const float* other = a + i * stride;
        double sum = row[i];
        for (size_t p = k0; p < i; ++p) sum -= static_cast<double>(row[p]) * other[p];
        if (i < j) {
          row[i] = static_cast<float>(sum / other[i]);
        } else if (sum > 0) {
          row[j] = static_cast<float>(std::sqrt(sum));
        } else {
          return false;
        }
      }
    }
    // The rows below: x L^T = a, with L the block just done.
    for (size_t r = k1; r < n; ++r) {
      float* row = a + r * stride;
      for (size_t i = k0; i < k1; ++i) {
        const float* other = a + i * stride;
        double sum = row[i];
        for (size_t p = k0; p < i; ++p) sum -= static_cast<double>(row[p]) * other[p];
        row[i] = static_cast<float>(sum / other[i]);
      }
    }
    // What is left, by blocks of rows, up to the diagonal.
    for (size_t r0 = k1; r0 < n; r0 += kColumns) {
      const size_t r1 = std::min(n, r0 + kColumns);
      SubtractProductTransposed(a + r0 * stride + k0, stride, a + k1 * stride + k0, stride, r1 - r0,
                                r1 - k1, k1 - k0, a + r0 * stride + k1, stride);
    }
  }
  return true;
}

void SolveLower(const float* l, size_t l_stride, size_t n, float* b, size_t m, size_t b_stride) {
  for (size_t k0 = 0; k0 < n; k0 += kBlock) {
    const size_t k1 = std::min(n, k0 + kBlock);
    for (size_t i = k0; i < k1; ++i) {
      float* row = b + i * b_stride;
      for (size_t p = k0; p < i; ++p) AddScaled(-l[i * l_stride + p], b + p * b_stride, m, row);
      const float inverse = 1.0f / l[i * l_stride + i];
      for (size_t j = 0; j < m; ++j) row[j] *= inverse;
    }
    AddProduct(-1, l + k1 * l_stride + k0, l_stride, b + k0 * b_stride, b_stride, n - k1, m,
               k1 - k0, b + k1 * b_stride, b_stride);
  }
}

void SolveLowerTransposed(const float* l, size_t l_stride, size_t n, float* b, size_t m,
                          size_t b_stride) {
  const size_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<float> turned;
  for (size_t block = blocks; block-- > 0;) {
    const size_t k0 = block * kBlock;
    const size_t k1 = std::min(n, k0 + kBlock);
    for (size_t i = k1; i-- > k0;) {
      float* row = b + i * b_stride;
      for (size_t p = i + 1; p < k1; ++p) {
        AddScaled(-l[p * l_stride + i], b + p * b_stride, m, row);
      }
      const float inverse = 1.0f / l[i * l_stride + i];
      for (size_t j = 0; j < m; ++j) row[j] *= inverse;
    }
    // Rows above: b[r] -= sum_p l[p][r] b[p].
    turned.assign(k0 * (k1 - k0), 0.0f);
    for (size_t p = k0; p < k1; ++p) {
      for (size_t r = 0; r < k0; ++r) turned[r * (k1 - k0) + p - k0] = l[p * l_stride + r];
    }
    AddProduct(-1, turned.data(), k1 - k0, b + k0 * b_stride, b_stride, k0, m, k1 - k0, b,
               b_stride);
  }
}

void Orthonormalise(float* v, size_t rows, size_t n) {
  const auto dot = [&](const float* x, const float* y) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * y[i];
    return sum;
  };
  for (size_t r = 0; r < rows; ++r) {
    float* row = v + r * n;
    const double before = dot(row, row);
    for (int round = 0; round < 2; ++round) {  // twice is enough
      for (size_t q = 0; q < r; ++q) {
        AddScaled(static_cast<float>(-dot(row, v + q * n)), v + q * n, n, row);
      }
    }
    const double norm = dot(row, row);
    const bool depends = !(norm > 1e-10 * before) || norm == 0;
    const auto scale = depends ? 0.0f : static_cast<float>(1 / std::sqrt(norm));
    for (size_t i = 0; i < n; ++i) row[i] *= scale;
  }
}

std::vector<float> LeadingRightVectors(const float* a, size_t a_stride, size_t m, size_t n,
                                       size_t rank) {
  // Subspace iteration from a fixed start with some vectors to spare.
  constexpr size_t kSpare = 16;
  constexpr int kRounds = 6;
  const size_t width = std::min(rank + kSpare, n);
  std::vector<float> v(width * n);
  uint64_t state = 1;
  for (float& value : v) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int64_t>(state >> 33) - (int64_t{1} << 30)) * 0x1p-30f;
  }
  Orthonormalise(v.data(), width, n);
  std::vector<float> turned(n * width);
  std::vector<float> image(m * width);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t r = 0; r < width; ++r) {
      for (size_t i = 0; i < n; ++i) turned[i * width + r] = v[r * n + i];
    }
    std::fill(image.begin(), image.end(), 0.0f);
    AddProduct(1, a, a_stride, turned.data(), width, m, width, n, image.data(), width);
    // v = image^T a, so that the largest directions come to lead.
    std::vector<float> left(width * m);
    for (size_t i = 0; i < m; ++i) {
      for (size_t r = 0; r < width; ++r) left[r * m + i] = image[i * width + r];
    }
    std::fill(v.begin(), v.end(), 0.0f);
    AddProduct(1, left.data(), m, a, a_stride, width, n, m, v.data(), n);
    // Largest first: Gram-Schmidt then keeps the order from round to round.
    std::vector<std::pair<double, size_t>> order;
    for (size_t r = 0; r < width; ++r) {
      double norm = 0;
      for (size_t i = 0; i < n; ++i) norm += static_cast<double>(v[r * n + i]) * v[r * n + i];
      order.emplace_back(-norm, r);
    }
    std::sort(order.begin(), order.end());
    std::vector<float> sorted(width * n);
    for (size_t r = 0; r < width; ++r) {
      std::copy_n(v.begin() + static_cast<ptrdiff_t>(order[r].second * n), n,
                  sorted.begin() + static_cast<ptrdiff_t>(r * n));
    }
    v = std::move(sorted);
    Orthonormalise(v.data(), width, n);
  }
  v.resize(std::min(rank, width) * n);
  v.resize(rank * n, 0.0f);
  return v;
}

}  // namespace expertflow::dense
