#include "model/arch/weight_table.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "model/checkpoint/safetensors.h"

namespace expertflow {

WeightTensor WeightTable::Declare(const std::string& name, std::vector<int64_t> shape,
                                  bool quantisable) {
  if (plan_ != nullptr) {
    plan_->dense.push_back({.name = name, .shape = std::move(shape), .quantisable = quantisable});
    return {};
  }
  if (!status_.ok()) return {};
  auto tensor = source_->Dense(name);
  if (!tensor.ok()) {
    status_ = tensor.status();
    return {};
  }
  if (tensor->shape != shape) {
    status_ = InvalidArgument(fmt::format("{}: expected shape {}, found {}", name,
                                          FormatShape(shape), FormatShape(tensor->shape)));
    return {};
  }
  return *std::move(tensor);
}

WeightMatrix WeightTable::Matrix(const std::string& name, int64_t rows, int64_t cols) {
  const WeightTensor tensor = Declare(name, {rows, cols}, true);
  return {tensor.data, tensor.dtype, static_cast<int32_t>(rows), static_cast<int32_t>(cols)};
}

WeightMatrix WeightTable::FloatMatrix(const std::string& name, int64_t rows, int64_t cols) {
  const WeightTensor tensor = Declare(name, {rows, cols}, false);
  return {tensor.data, tensor.dtype, static_cast<int32_t>(rows), static_cast<int32_t>(cols)};
}

WeightVector WeightTable::Vector(const std::string& name, int64_t size) {
  const WeightTensor tensor = Declare(name, {size}, false);
  return {tensor.data, tensor.dtype, static_cast<int32_t>(size)};
}

Projection WeightTable::Linear(const std::string& name, int64_t rows, int64_t cols, bool bias) {
  Projection projection;
  projection.weight = Matrix(name + ".weight", rows, cols);
  if (bias) projection.bias = Vector(name + ".bias", rows);
  return projection;
}

Projection WeightTable::Router(const std::string& name, int64_t rows, int64_t cols, bool bias) {
  Projection projection;
  projection.weight = FloatMatrix(name + ".weight", rows, cols);
  if (bias) projection.bias = Vector(name + ".bias", rows);
  return projection;
}

MlpWeights WeightTable::Mlp(const std::string& prefix, int64_t hidden, int64_t intermediate) {
  MlpWeights mlp;
  mlp.gate = Matrix(prefix + "gate_proj.weight", intermediate, hidden);
  mlp.up = Matrix(prefix + "up_proj.weight", intermediate, hidden);
  mlp.down = Matrix(prefix + "down_proj.weight", hidden, intermediate);
  return mlp;
}

}  // namespace expertflow
