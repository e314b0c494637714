// Matrices of quantised types for a store (common/dtype.h): from numbers, or from codes and scales
// that a checkpoint has. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "common/status.h"

namespace expertflow {

// What a matrix lost.
struct QuantisationError {
  double error_squares = 0;  // sum over the elements
  double value_squares = 0;
  double error_max = 0;

  // Root of the mean square error, relative to that of the values.
  double relative() const;
};

// Each group by itself, to the nearest codes. The scale makes the largest absolute value 127
// (kInt8), 7 (kInt4) or 448 (kFp8) steps; kUInt4 spreads its 16 codes from the smallest to the
// largest value, and zero is one of them; kMxfp4 takes the power of two that loses less of the one
// whose 4 is next below the largest absolute value (OCP Microscaling Formats 1.0) and of its
// double. A value that is not finite is an error.
// REQUIRES: IsQuantised(dtype), whole groups, `out` has MatrixBytes(dtype, values.size())
Status QuantiseGroups(std::span<const float> values, DType dtype, std::span<uint8_t> out,
                      QuantisationError* error);

// Codes and scales as GroupedCodes (tensor_decoder.h) has them, laid out as a matrix.
// REQUIRES: as above; every code has a place in `dtype`
void PlaceGroups(std::span<const int8_t> codes, std::span<const float> scales, DType dtype,
                 std::span<uint8_t> out);

}  // namespace expertflow
