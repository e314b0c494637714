// A weight plan says which tensors a model needs, by name and shape, and how experts group into
// blocks. An architecture (model/arch) makes it from its config; the checkpoint is validated
// against it; the expert store lays memory out by it. Nothing here reads a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "model/checkpoint/quantisation.h"

namespace expertflow {

// Where a tensor lies inside a larger one of the checkpoint, perhaps transposed or with gaps: its
// element (i, j) is element `offset` + i * strides[0] + j * strides[1] of that one.
struct TensorSlice {
  std::string tensor;          // as in the checkpoint
  std::vector<int64_t> shape;  // of that tensor, row-major
  int64_t offset = 0;
  std::vector<int64_t> strides;  // one for each dimension of the slice
};

// A tensor that the model needs.
struct TensorSpec {
  std::string name;            // as in the checkpoint, unless it is a slice
  std::vector<int64_t> shape;  // row-major, outermost first
  std::optional<TensorSlice> slice;
  // Of a matrix that is no expert's: the model computes with it in any type of common/dtype.h.
  bool quantisable = false;

  // The tensor of the checkpoint that holds it.
  const std::string& source() const { return slice ? slice->tensor : name; }
  const std::vector<int64_t>& source_shape() const { return slice ? slice->shape : shape; }
};

// One expert: its matrices and, if any, biases, stored in this order in its block.
struct ExpertSpec {
  ExpertKey key;
  TensorSpec gate;  // [expert_intermediate, hidden]
  TensorSpec up;    // [expert_intermediate, hidden]
  TensorSpec down;  // [hidden, expert_intermediate]
  bool has_biases = false;
  TensorSpec gate_bias;  // [expert_intermediate]
  TensorSpec up_bias;    // [expert_intermediate]
  TensorSpec down_bias;  // [hidden]

  // The parts that are there.
  std::vector<const TensorSpec*> parts() const {
    if (!has_biases) return {&gate, &up, &down};
    return {&gate, &up, &down, &gate_bias, &up_bias, &down_bias};
  }
};

struct WeightPlan {
  int32_t layers = 0;
  int32_t experts_per_layer = 0;    // of layers that have experts
  std::vector<TensorSpec> dense;    // everything that is not a routed expert
  std::vector<ExpertSpec> experts;  // sorted by key; dense layers have none
  // Tensors that may be present and are not needed (rotary caches, MTP layers, a tied lm_head).
  // A name is ignored when it starts with one of these.
  std::vector<std::string> ignored_prefixes;
  Quantisation quantisation;  // of the checkpoint
  // Rows that belong together in projections, which some files keep in another order.
  int64_t head_dim = 0;  // of queries and keys
  int64_t nope_dim = 0;  // of them without rotation, in multi-head latent attention
};

}  // namespace expertflow
