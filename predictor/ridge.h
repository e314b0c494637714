// Ridge regression of some outputs on some inputs, from sums over rows that come in blocks. Inputs
// are standardised, so that the penalty means rows: as much as that many rows say that an input
// does not matter.
#pragma once

#include <cstddef>
#include <vector>

#include "common/status.h"

namespace expertflow {

class RidgeSums {
 public:
  RidgeSums(size_t inputs, size_t outputs);

  // x[rows, inputs], y[rows, outputs]
  void Add(const float* x, const float* y, size_t rows);
  void Add(const RidgeSums& other);

  size_t inputs() const { return inputs_; }
  size_t outputs() const { return outputs_; }
  double rows() const { return rows_; }

  struct Map {
    std::vector<float> weight;  // [inputs, outputs]
    std::vector<float> bias;    // [outputs]
  };
  // kInvalidArgument when the inputs do not determine the map: too few rows for the penalty.
  Result<Map> Solve(double penalty_rows) const;

  // Of the inputs, by row: covariance[inputs, inputs].
  std::vector<float> Covariance() const;

 private:
  double MeanX(size_t i) const { return sum_x_[i] / rows_; }

  size_t inputs_;
  size_t outputs_;
  double rows_ = 0;
  std::vector<double> sum_x_;
  std::vector<double> sum_y_;
  std::vector<float> xx_;      // [inputs, inputs]
  std::vector<float> xy_;      // [inputs, outputs]
  std::vector<float> turned_;  // scratch
};

}  // namespace expertflow
