// The fitting algebra against its definitions, with sizes around the block sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "predictor/dense.h"

namespace expertflow {
namespace {

std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  return values;
}

TEST(DenseTest, CholeskyAndItsSolvesInvertAPositiveDefiniteMatrix) {
  for (const size_t n : {1u, 7u, 64u, 65u, 300u}) {
    const std::vector<float> root = Random(n * n, 1);
    std::vector<float> matrix(n * n, 0.0f);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        for (size_t k = 0; k < n; ++k) matrix[i * n + j] += root[i * n + k] * root[j * n + k];
      }
      matrix[i * n + i] += static_cast<float>(n);
    }
    std::vector<float> factor = matrix;
    ASSERT_TRUE(dense::Cholesky(n, factor.data(), n));
    const size_t m = 3;
    const std::vector<float> wanted = Random(n * m, 2);
    std::vector<float> x(n * m, 0.0f);
    dense::AddProduct(1, matrix.data(), n, wanted.data(), m, n, m, n, x.data(), m);
    dense::SolveLower(factor.data(), n, n, x.data(), m, m);
    dense::SolveLowerTransposed(factor.data(), n, n, x.data(), m, m);
    for (size_t i = 0; i < n * m; ++i) ASSERT_NEAR(x[i], wanted[i], 2e-3) << n;
  }
  std::vector<float> indefinite = {1, 0, 2, 1};
  EXPECT_FALSE(dense::Cholesky(2, indefinite.data(), 2));
}

TEST(DenseTest, LeadingVectorsHoldTheMatrixWhenItsRankIsThatLow) {
  const size_t m = 40;
  const size_t n = 30;
  const size_t rank = 5;
  const std::vector<float> left = Random(m * rank, 3);
  const std::vector<float> right = Random(rank * n, 4);
  std::vector<float> a(m * n, 0.0f);
  dense::AddProduct(1, left.data(), rank, right.data(), n, m, n, rank, a.data(), n);
  const std::vector<float> v = dense::LeadingRightVectors(a.data(), n, m, n, rank);
  for (size_t r = 0; r < rank; ++r) {
    for (size_t q = 0; q <= r; ++q) {
      float dot = 0;
      for (size_t i = 0; i < n; ++i) dot += v[r * n + i] * v[q * n + i];
      EXPECT_NEAR(dot, r == q ? 1 : 0, 1e-4);
    }
  }
  for (size_t i = 0; i < m; ++i) {  // a = a v^T v
    for (size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (size_t r = 0; r < rank; ++r) {
        float projection = 0;
        for (size_t k = 0; k < n; ++k) projection += a[i * n + k] * v[r * n + k];
        sum += projection * v[r * n + j];
      }
      EXPECT_NEAR(sum, a[i * n + j], 1e-3);
    }
  }
}

}  // namespace
}  // namespace expertflow
