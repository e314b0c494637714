// Quantises a matrix for a store: integers with a scale for each group of a row (common/dtype.h). A
// pure function; any thread.
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

// Symmetric: the scale is the group's largest absolute value by 127 (kInt8) or 7 (kInt4), so no
// element is off by more than half a scale, and roundings. A value that is not finite is an error.
// REQUIRES: IsQuantised(dtype), whole groups, `out` has MatrixBytes(dtype, values.size())
Status QuantiseGroups(std::span<const float> values, DType dtype, std::span<uint8_t> out,
                      QuantisationError* error);

}  // namespace expertflow
