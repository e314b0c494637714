// A model's tensor table, written once and read twice: first to plan (names and shapes, for the
// checkpoint and the store), later to bind (where the tensors lie on the device). What a family
// declares through it cannot differ between the two. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"
#include "device/ops.h"
#include "model/arch/model.h"
#include "model/checkpoint/weight_plan.h"

namespace expertflow {

// A linear layer; the bias may be absent.
struct Projection {
  WeightMatrix weight;
  WeightVector bias;
};

class WeightTable {
 public:
  // Adds each declared tensor to the plan; what is returned has sizes and no data.
  explicit WeightTable(WeightPlan* plan) : plan_(plan) {}
  // Looks each declared tensor up. REQUIRES: source outlives the table
  explicit WeightTable(const WeightSource& source) : source_(&source) {}

  // A store may hold it quantised (TensorSpec::quantisable).
  WeightMatrix Matrix(const std::string& name, int64_t rows, int64_t cols);
  // Stays in floats: what decides about experts is worth more than its few bytes.
  WeightMatrix FloatMatrix(const std::string& name, int64_t rows, int64_t cols);
  WeightVector Vector(const std::string& name, int64_t size);
  // "<name>.weight" and perhaps "<name>.bias"
  Projection Linear(const std::string& name, int64_t rows, int64_t cols, bool bias);
  // The same, of a router: in floats.
  Projection Router(const std::string& name, int64_t rows, int64_t cols, bool bias);
  // "<prefix>gate_proj.weight", up_proj, down_proj
  MlpWeights Mlp(const std::string& prefix, int64_t hidden, int64_t intermediate);

  // The first error: a tensor that is missing or has another shape, by name.
  const Status& status() const { return status_; }

 private:
  WeightTensor Declare(const std::string& name, std::vector<int64_t> shape, bool quantisable);

  WeightPlan* plan_ = nullptr;
  const WeightSource* source_ = nullptr;
  Status status_;
};

}  // namespace expertflow
