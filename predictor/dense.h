// Dense linear algebra for fitting: what a ridge regression of a few thousand inputs needs, blocked
// for the caches, single precision. Row-major; strides are in elements. Pure functions.
#pragma once

#include <cstddef>
#include <vector>

namespace expertflow::dense {

// to[i] += scale * from[i]
void AddScaled(float scale, const float* from, size_t count, float* to);

// c[m, n] -= a[m, k] * b[n, k]^T
void SubtractProductTransposed(const float* a, size_t a_stride, const float* b, size_t b_stride,
                               size_t m, size_t n, size_t k, float* c, size_t c_stride);
// c[m, n] += scale * a[m, k] * b[k, n]
void AddProduct(float scale, const float* a, size_t a_stride, const float* b, size_t b_stride,
                size_t m, size_t n, size_t k, float* c, size_t c_stride);

// In place, lower triangle of the symmetric a[n, n]; what is above the diagonal is not touched.
// False when a is not positive definite.
bool Cholesky(size_t n, float* a, size_t stride);
// b[n, m] = L^-1 b, with L the lower triangle of l[n, n].
void SolveLower(const float* l, size_t l_stride, size_t n, float* b, size_t m, size_t b_stride);
// b[n, m] = L^-T b
void SolveLowerTransposed(const float* l, size_t l_stride, size_t n, float* b, size_t m,
                          size_t b_stride);

// Makes the rows of v[rows, n] orthonormal, in order; a row that depends on those before it becomes
// zero.
void Orthonormalise(float* v, size_t rows, size_t n);

// The `rank` right singular vectors of a[m, n] with the largest singular values, close enough for a
// low-rank map: [rank, n], orthonormal. Deterministic. REQUIRES: 0 < rank
std::vector<float> LeadingRightVectors(const float* a, size_t a_stride, size_t m, size_t n,
                                       size_t rank);

}  // namespace expertflow::dense
