// The tensors that a model needs, found in a checkpoint however it keeps them: as they are, or
// quantised in one of the ways of tensor_decoder.h. Immutable; any thread may read. Borrows the
// checkpoint, which must outlive it.
#pragma once

#include <memory>
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

  // The quantised type that holds a matrix as it is; `dtype` where there is none.
  DType kept_type() const {
    if (decoder && decoder->blocks() != nullptr) return decoder->blocks()->kept_as();
    if (decoder && decoder->codes() != nullptr) return decoder->codes()->kept_as();
    return dtype;
  }
};

class ModelTensors {
 public:
  // Every planned tensor exists with exactly its shape and a type that the model computes with, or
  // quantised as the plan says; where none of them is quantised all expert matrices have one type,
  // and so have their biases in any case (where some are quantised, float32); and there is no
  // tensor that is neither planned nor ignored.
  static Result<ModelTensors> Resolve(const WeightPlan& plan, const Checkpoint& checkpoint);

  // By the name in the plan: TensorSpec::source(). REQUIRES: it is planned. Stays valid when this
  // object is moved.
  const ModelTensor& Get(const std::string& name) const { return tensors_.at(name); }

 private:
  std::unordered_map<std::string, ModelTensor> tensors_;
};

}  // namespace expertflow
