// Products with matrices of bytes (hybrid_model.h): small enough to stay in a core's cache, where
// floats would be fetched from memory for every layer. Inputs are rounded to 16-bit steps, so sums
// are whole numbers: exact, in any order, and equal on every machine and for rows together or one
// by one. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "predictor/core/hybrid_model.h"

namespace expertflow {

// A vector as whole steps: value[i] is about size * step[i].
struct StepRow {
  const int16_t* step = nullptr;
  float size = 0;
};

// The nearest steps to `in`, so small that no sum over them overflows. Zeros when `in` holds what
// is no finite number. `step` has room for as many.
StepRow ToSteps(std::span<const float> in, int16_t* step);

// to[r][o] += scale[o] * sum over i < inputs of in[r][i] * weight[o, first + i], for the first
// `outputs` of the matrix's outputs; the bias is not added.
// REQUIRES: first + inputs <= matrix.inputs; outputs <= matrix.outputs; in and to of one size
void AddProducts(const ByteMatrix& matrix, size_t first, size_t inputs, size_t outputs,
                 std::span<const StepRow> in, std::span<float* const> to);
// to[r] = bias + the product of all inputs.
void ApplyMatrix(const ByteMatrix& matrix, size_t outputs, std::span<const StepRow> in,
                 std::span<float* const> to);

// The nearest matrix of bytes. weight[inputs, outputs]
ByteMatrix MakeByteMatrix(size_t inputs, size_t outputs, std::span<const float> weight,
                          std::vector<float> bias);

}  // namespace expertflow
