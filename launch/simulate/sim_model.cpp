#include "launch/simulate/sim_model.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <vector>

namespace expertflow {
namespace {

// Launches of one attention block with its norms and router, of a dense or shared MLP.
constexpr int32_t kAttentionKernels = 9;
constexpr int32_t kMlpKernels = 3;
constexpr double kScaleGroup = 128;
constexpr double kScaleBits = 16;

double Parameters(const std::vector<int64_t>& shape) {
  double count = 1;
  for (const int64_t size : shape) count *= static_cast<double>(size);
  return count;
}

double WithScales(double bits) {
  return bits < 16 ? bits + kScaleBits / kScaleGroup : bits;
}

// The layer that a name such as "model.layers.12.mlp.gate.weight" speaks of; -1: none.
int32_t LayerOf(std::string_view name) {
  constexpr std::string_view kWord = "layers.";
  const size_t at = name.find(kWord);
  if (at == std::string_view::npos) return -1;
  const std::string digits(name.substr(at + kWord.size(), 6));
  return std::atoi(digits.c_str());
}

bool Contains(std::string_view name, std::string_view word) {
  return name.find(word) != std::string_view::npos;
}

}  // namespace

Result<SimModel> MakeSimModel(const ModelSource& source, const std::string& name,
                              const Precision& precision) {
  const ModelShape& shape = source.architecture->shape();
  const WeightPlan& plan = source.architecture->weights();
  if (shape.moe_layers.empty() || plan.experts.empty()) {
    return InvalidArgument(name + ": has no experts to simulate");
  }
  SimModel model;
  model.name = name;
  model.experts = shape.experts;
  model.top_k = shape.top_k;
  const double dense_bytes = WithScales(precision.dense_bits) / 8;
  double expert_parameters = 0;
  for (const TensorSpec* part : plan.experts.front().parts()) {
    expert_parameters += Parameters(part->shape);
  }
  model.expert_bytes =
      static_cast<uint64_t>(expert_parameters * WithScales(precision.expert_bits) / 8);
  model.expert_flops_per_row = 2 * expert_parameters;
  const double kv_share = precision.kv_bits / 32;  // the shape counts 32-bit numbers
  model.kv_bytes_per_token =
      static_cast<uint64_t>(static_cast<double>(shape.kv_bytes_per_token()) * kv_share);

  // Layer by layer; a dense layer is part of the MoE layer after it, those after the last of that.
  std::vector<size_t> owner(static_cast<size_t>(shape.layers));
  size_t next = 0;
  for (int32_t l = 0; l < shape.layers; ++l) {
    owner[static_cast<size_t>(l)] = std::min(next, shape.moe_layers.size() - 1);
    if (next < shape.moe_layers.size() && shape.moe_layers[next] == l) ++next;
  }
  std::vector<double> parameters(shape.moe_layers.size());
  model.layers.resize(shape.moe_layers.size());
  const uint64_t kv_per_layer = model.kv_bytes_per_token / static_cast<uint64_t>(shape.layers);
  for (int32_t l = 0; l < shape.layers; ++l) {
    SimLayer& layer = model.layers[owner[static_cast<size_t>(l)]];
    layer.kernels += kAttentionKernels;
    layer.kv_bytes_per_token += kv_per_layer;
  }
  double all = 0;
  double head = 0;
  for (const TensorSpec& tensor : plan.dense) {
    const double count = Parameters(tensor.shape);
    all += count;
    const int32_t l = LayerOf(tensor.name);
    if (l >= 0 && l < shape.layers) {
      const size_t at = owner[static_cast<size_t>(l)];
      parameters[at] += count;
      if (Contains(tensor.name, "gate_proj") || Contains(tensor.name, "gate_up_proj")) {
        model.layers[at].kernels += kMlpKernels;
      }
    } else if (Contains(tensor.name, "lm_head") || (head == 0 && Contains(tensor.name, "embed"))) {
      head = count;  // a tied head is the embedding
    }
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].bytes = static_cast<uint64_t>(parameters[i] * dense_bytes);
    model.layers[i].flops_per_row = 2 * parameters[i];
  }
  model.dense_bytes = static_cast<uint64_t>(all * dense_bytes);
  model.head_bytes = static_cast<uint64_t>(head * dense_bytes);
  model.head_flops_per_row = 2 * head;
  return model;
}

}  // namespace expertflow
