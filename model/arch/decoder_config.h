// The part of a config.json that the decoder families (decoder.h) read alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/status.h"
#include "model/arch/decoder.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {

// What a family's config means where it is silent.
struct DecoderDefaults {
  const char* architecture = "";
  double norm_eps = 1e-6;
  RopeRules rope;
  int32_t head_dim = 0;        // 0: hidden_size / num_attention_heads
  bool fused_experts = false;  // the one form that MXFP4 is known for, and the only one of it
};

// Layers, sizes, heads, vocabulary, context, activation, eps, stop tokens, rotary embedding.
// Settings that no family honours are refused by name. With `latent` heads have sizes of their own:
// head_dim is not read.
Result<DecoderConfig> ReadDecoderConfig(const JsonConfig& json, const DecoderDefaults& defaults,
                                        bool latent = false);

// The experts' keys, whose names differ.
struct ExpertKeys {
  const char* experts = "num_experts";
  const char* top_k = "num_experts_per_tok";
  const char* intermediate = "moe_intermediate_size";
};
Status ReadExpertSizes(const JsonConfig& json, const ExpertKeys& keys, DecoderConfig* config);

// MoE layers: all, but the first `dense`.
void SetMoeLayersFrom(int32_t dense, ModelShape* shape);
// decoder_sparse_step and mlp_only_layers.
Status ReadSparseLayers(const JsonConfig& json, ModelShape* shape);

// use_sliding_window, sliding_window, max_window_layers, layer_types as in Qwen's configs, where
// published codes disagree on the layers: accepted where windows cannot have an effect.
Status CheckUnusedWindow(const JsonConfig& json, const ModelShape& shape);

// Last: refuses what nobody has read, and derives what follows from the rest (attention scale,
// rotary size, KV layout).
Status FinishDecoderConfig(const JsonConfig& json, DecoderConfig* config);

}  // namespace expertflow
