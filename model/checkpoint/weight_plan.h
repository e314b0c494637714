// A weight plan says which tensors a model needs, by name and shape, and how experts group into
// blocks. An architecture (model/arch) makes it from its config; the checkpoint is validated
// against it; the expert store lays memory out by it. Nothing here reads a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"

namespace expertflow {

// A tensor as the checkpoint must contain it.
struct TensorSpec {
  std::string name;            // as in the checkpoint
  std::vector<int64_t> shape;  // row-major, outermost first
};

// One expert: SwiGLU matrices, stored in this order in its block.
struct ExpertSpec {
  ExpertKey key;
  TensorSpec gate;  // [expert_intermediate, hidden]
  TensorSpec up;    // [expert_intermediate, hidden]
  TensorSpec down;  // [hidden, expert_intermediate]
};

struct WeightPlan {
  int32_t layers = 0;
  int32_t experts_per_layer = 0;    // of layers that have experts
  std::vector<TensorSpec> dense;    // everything that is not a routed expert
  std::vector<ExpertSpec> experts;  // sorted by key; dense layers have none
  // Tensors that may be present and are not needed (rotary caches, MTP layers, a tied lm_head).
  // A name is ignored when it starts with one of these.
  std::vector<std::string> ignored_prefixes;
};

}  // namespace expertflow
