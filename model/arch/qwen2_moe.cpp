// Qwen2-MoE: grouped-query attention with q/k/v biases, softmax top-k routing, one shared expert
// behind a sigmoid gate.
#include <algorithm>

#include "model/arch/decoder_config.h"
#include "model/arch/families.h"

namespace expertflow {
namespace {

struct Qwen2MoeConfig {
  DecoderConfig decoder;
  int32_t dense_intermediate = 0;
  int32_t shared_intermediate = 0;
  bool qkv_bias = true;
};

Result<Qwen2MoeConfig> ReadQwen2MoeConfig(const JsonConfig& json) {
  Qwen2MoeConfig config;
  ASSIGN_OR_RETURN(config.decoder,
                   ReadDecoderConfig(json, {.architecture = "Qwen2MoeForCausalLM"}));
  ModelShape& shape = config.decoder.shape;
  ASSIGN_OR_RETURN(config.qkv_bias, json.BoolOr("qkv_bias", true));
  RETURN_IF_ERROR(ReadExpertSizes(json, {}, &config.decoder));
  ASSIGN_OR_RETURN(config.shared_intermediate,
                   json.Int("shared_expert_intermediate_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(config.dense_intermediate, json.Int("intermediate_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(config.decoder.router.normalise, json.BoolOr("norm_topk_prob", false));
  RETURN_IF_ERROR(ReadSparseLayers(json, &shape));
  RETURN_IF_ERROR(CheckUnusedWindow(json, shape));
  RETURN_IF_ERROR(FinishDecoderConfig(json, &config.decoder));
  const bool has_dense = static_cast<int32_t>(shape.moe_layers.size()) < shape.layers;
  shape.intermediate_max = std::max(shape.moe_layers.empty() ? 0 : config.shared_intermediate,
                                    has_dense ? config.dense_intermediate : 0);
  return config;
}

DecoderLayer DeclareLayer(const Qwen2MoeConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  const std::string mlp = prefix + "mlp.";
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  DeclareProjections(shape, prefix + "self_attn.", config.qkv_bias, false, table, &layer.attention);
  if (!IsMoeLayer(shape, index)) {
    layer.mlp = table->Mlp(mlp, shape.hidden, config.dense_intermediate);
    return layer;
  }
  layer.router = table->Router(mlp + "gate", shape.experts, shape.hidden, false);
  layer.shared_gate = table->FloatMatrix(mlp + "shared_expert_gate.weight", 1, shape.hidden);
  layer.mlp = table->Mlp(mlp + "shared_expert.", shape.hidden, config.shared_intermediate);
  return layer;
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeQwen2Moe(const JsonConfig& json) {
  ASSIGN_OR_RETURN(const Qwen2MoeConfig config, ReadQwen2MoeConfig(json));
  return MakeDecoder(config.decoder, UsualTables(config, DeclareLayer));
}

}  // namespace expertflow
