// A small Qwen2-MoE config.json, changed key by key.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/arch/architecture.h"

namespace expertflow::testing {

// Three layers, all of them MoE.
inline nlohmann::json SmallConfig() {
  return nlohmann::json::parse(R"({
    "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50, "max_position_embeddings": 64,
    "intermediate_size": 40, "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20, "num_experts": 8, "num_experts_per_tok": 3,
    "norm_topk_prob": false, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false
  })");
}

// A null value stays in the text: it must count as an absent key.
inline nlohmann::json ChangedConfig(const std::string& changes) {
  nlohmann::json config = SmallConfig();
  config.update(nlohmann::json::parse(changes));
  return config;
}

inline Result<std::unique_ptr<Architecture>> MakeFrom(const nlohmann::json& config) {
  ASSIGN_OR_RETURN(const JsonConfig json, JsonConfig::Parse(config.dump(), "config.json"));
  return MakeArchitecture(json);
}

}  // namespace expertflow::testing
