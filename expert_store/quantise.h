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

struct QuantiseOptions {
  DType dtype = DType::kInt8;
  // The values may be integers times one number already, as those of other quantised forms are: a
  // group is kept as it is where that number and its integers can be found.
  bool evenly_spaced = false;
};

// Symmetric: the scale is the group's largest absolute value by 127 (kInt8) or 7 (kInt4), so no
// element is off by more than half a scale, and roundings. A value that is not finite is an error.
// REQUIRES: IsQuantised(dtype), whole groups, `out` has MatrixBytes(dtype, values.size())
Status QuantiseGroups(std::span<const float> values, const QuantiseOptions& options,
                      std::span<uint8_t> out, QuantisationError* error);

}  // namespace expertflow
