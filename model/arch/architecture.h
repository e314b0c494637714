// Model architectures: what a config.json means. One file per family holds its config and its
// tensor table with shapes and says which blocks its forward pass is made of (decoder.h,
// families.h); this header is what the rest of the system sees.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"
#include "device/ops.h"
#include "model/checkpoint/json_config.h"
#include "model/checkpoint/weight_plan.h"

namespace expertflow {

class Model;
class Device;
class WeightSource;
struct ModelLimits;

// What the KV cache holds of a token in each layer.
struct KvShape {
  int32_t heads = 0;
  int32_t head_dim = 0;    // of a key, and of a value
  int32_t shared_dim = 0;  // > 0: only keys are held, each begins with its value of this size

  int64_t bytes(DType dtype) const {
    return heads * KvHeadBytes(dtype, head_dim) * (shared_dim > 0 ? 1 : 2);
  }
};

// The sizes that planning needs; every architecture fills all of them.
struct ModelShape {
  std::string architecture;  // "Qwen2MoeForCausalLM"
  int32_t layers = 0;
  std::vector<int32_t> moe_layers;  // layer numbers that have experts, ascending
  int32_t experts = 0;              // per MoE layer
  int32_t top_k = 0;
  int32_t hidden = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;  // of a query
  KvShape kv;
  int32_t vocab = 0;
  int32_t context = 0;           // trained length: longer prompts are refused
  int32_t intermediate_max = 0;  // widest MLP that is not a routed expert
  int32_t expert_intermediate = 0;
  std::vector<int32_t> stop_tokens;  // eos ids of config.json

  // Of all layers, with a KV cache of this type.
  uint64_t kv_bytes_per_token(DType dtype = DType::kF32) const {
    return static_cast<uint64_t>(layers) * static_cast<uint64_t>(kv.bytes(dtype));
  }
};

class Architecture {
 public:
  virtual ~Architecture() = default;
  virtual const ModelShape& shape() const = 0;
  virtual const WeightPlan& weights() const = 0;
  // Device memory that a model needs beside weights, experts and KV blocks.
  virtual uint64_t WorkspaceBytes(const ModelLimits& limits) const = 0;
  // Binds the weights and allocates the workspace. REQUIRES: device and weights outlive the model
  virtual Result<std::unique_ptr<Model>> Build(Device& device, const WeightSource& weights,
                                               const ModelLimits& limits) const = 0;
};

// Reads a config.json. An unknown architecture, and every setting that is neither honoured nor
// known to be without effect here, is refused by name.
Result<std::unique_ptr<Architecture>> MakeArchitecture(const JsonConfig& config);

}  // namespace expertflow
