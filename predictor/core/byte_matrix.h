// Products with matrices of bytes (hybrid_model.h): small enough to stay in a core's cache, where
// floats would be fetched from memory for every layer. Pure; the inputs of each output are summed
// in order, nothing is fused, so results are equal on every machine.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "predictor/core/hybrid_model.h"

namespace expertflow {

// out[0 .. outputs) = bias + scale * in * weight: the first so many of the matrix's outputs.
// REQUIRES: in.size() == matrix.inputs; outputs <= matrix.outputs
void ApplyMatrix(const ByteMatrix& matrix, std::span<const float> in, size_t outputs, float* out);
// to += scale * in * weight, for the inputs from `first` on only and without the bias.
void AddRows(const ByteMatrix& matrix, size_t first, std::span<const float> in, size_t outputs,
             float* to);

// The nearest matrix of bytes. weight[inputs, outputs]
ByteMatrix MakeByteMatrix(size_t inputs, size_t outputs, std::span<const float> weight,
                          std::vector<float> bias);

}  // namespace expertflow
