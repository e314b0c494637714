#include "predictor/ridge.h"

#include <algorithm>
#include <cmath>

#include "predictor/dense.h"

namespace expertflow {

RidgeSums::RidgeSums(size_t inputs, size_t outputs)
    : inputs_(inputs),
      outputs_(outputs),
      sum_x_(inputs),
      sum_y_(outputs),
      xx_(inputs * inputs),
      xy_(inputs * outputs) {}

void RidgeSums::Add(const float* x, const float* y, size_t rows) {
  turned_.resize(inputs_ * rows);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < inputs_; ++i) {
      turned_[i * rows + r] = x[r * inputs_ + i];
      sum_x_[i] += x[r * inputs_ + i];
    }
    for (size_t o = 0; o < outputs_; ++o) sum_y_[o] += y[r * outputs_ + o];
  }
  dense::AddProduct(1, turned_.data(), rows, x, inputs_, inputs_, inputs_, rows, xx_.data(),
                    inputs_);
  dense::AddProduct(1, turned_.data(), rows, y, outputs_, inputs_, outputs_, rows, xy_.data(),
                    outputs_);
  rows_ += static_cast<double>(rows);
}

void RidgeSums::Add(const RidgeSums& other) {
  for (size_t i = 0; i < inputs_; ++i) sum_x_[i] += other.sum_x_[i];
  for (size_t o = 0; o < outputs_; ++o) sum_y_[o] += other.sum_y_[o];
  dense::AddScaled(1, other.xx_.data(), xx_.size(), xx_.data());
  dense::AddScaled(1, other.xy_.data(), xy_.size(), xy_.data());
  rows_ += other.rows_;
}

std::vector<float> RidgeSums::Covariance() const {
  std::vector<float> covariance(xx_.size());
  for (size_t i = 0; i < inputs_; ++i) {
    for (size_t j = 0; j < inputs_; ++j) {
      covariance[i * inputs_ + j] =
          static_cast<float>(xx_[i * inputs_ + j] / rows_ - MeanX(i) * MeanX(j));
    }
  }
  return covariance;
}

Result<RidgeSums::Map> RidgeSums::Solve(double penalty_rows) const {
  if (rows_ < 2) return InvalidArgument("ridge regression: too few rows");
  std::vector<float> gram = Covariance();
  // What hardly varies cannot be told from the constant.
  std::vector<double> inverse(inputs_);
  for (size_t i = 0; i < inputs_; ++i) {
    const double variance = gram[i * inputs_ + i];
    inverse[i] = variance > 1e-10 ? 1 / std::sqrt(variance) : 0;
  }
  for (size_t i = 0; i < inputs_; ++i) {
    for (size_t j = 0; j < inputs_; ++j) {
      gram[i * inputs_ + j] = static_cast<float>(gram[i * inputs_ + j] * inverse[i] * inverse[j]);
    }
    gram[i * inputs_ + i] += static_cast<float>(penalty_rows / rows_ + (inverse[i] == 0 ? 1 : 0));
  }
  Map map;
  map.weight.resize(inputs_ * outputs_);
  map.bias.resize(outputs_);
  for (size_t i = 0; i < inputs_; ++i) {
    for (size_t o = 0; o < outputs_; ++o) {
      map.weight[i * outputs_ + o] = static_cast<float>(
          (xy_[i * outputs_ + o] / rows_ - MeanX(i) * (sum_y_[o] / rows_)) * inverse[i]);
    }
  }
  if (!dense::Cholesky(inputs_, gram.data(), inputs_)) {
    return InvalidArgument("ridge regression: too few rows for so many inputs");
  }
  dense::SolveLower(gram.data(), inputs_, inputs_, map.weight.data(), outputs_, outputs_);
  dense::SolveLowerTransposed(gram.data(), inputs_, inputs_, map.weight.data(), outputs_, outputs_);
  for (size_t o = 0; o < outputs_; ++o) map.bias[o] = static_cast<float>(sum_y_[o] / rows_);
  for (size_t i = 0; i < inputs_; ++i) {
    for (size_t o = 0; o < outputs_; ++o) {
      float& weight = map.weight[i * outputs_ + o];
      weight = static_cast<float>(weight * inverse[i]);
      map.bias[o] -= static_cast<float>(MeanX(i)) * weight;
    }
  }
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(map.weight.begin(), map.weight.end(), finite) ||
      !std::all_of(map.bias.begin(), map.bias.end(), finite)) {
    return InvalidArgument("ridge regression: values that are no numbers");
  }
  return map;
}

}  // namespace expertflow
