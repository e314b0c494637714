// The tensors that a model needs, found in a checkpoint however it keeps them: as they are, or
// quantised in one of the ways of tensor_decoder.h. Immutable; any thread may read. Borrows the
// checkpoint, which must outlive it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/tensor_decoder.h"
#include "model/checkpoint/weight_plan.h"

namespace expertflow {

struct ModelTensor {
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;         // of its elements in a store
  const TensorInfo* info = nullptr;  // the tensor; with a decoder the first of those it is made of
  std::shared_ptr<const TensorDecoder> decoder;  // null: its bytes are as in the file
};

class ModelTensors {
 public:
  // Every planned tensor exists with exactly its shape and a type that the model computes with, or
  // quantised as the plan says; all expert matrices have one type (where some of them are quantised
  // the widest that one needs); and there is no tensor that is neither planned nor ignored.
  static Result<ModelTensors> Resolve(const WeightPlan& plan, const Checkpoint& checkpoint);

  // By the name in the plan: TensorSpec::source(). REQUIRES: it is planned. Stays valid when this
  // object is moved.
  const ModelTensor& Get(const std::string& name) const { return tensors_.at(name); }

  // The smallest quantised type that holds all matrices of experts as they are; none where one of
  // them is not quantised, or in no such way.
  std::optional<DType> experts_kept_as() const { return experts_kept_as_; }

 private:
  std::optional<DType> experts_kept_as_;
  std::unordered_map<std::string, ModelTensor> tensors_;
};

}  // namespace expertflow
