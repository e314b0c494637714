// Qwen3-MoE: grouped-query attention with norms of each query and key head, softmax top-k routing
// whose weights are mostly renormalised, no shared expert.
#include "model/arch/decoder_config.h"
#include "model/arch/families.h"

namespace expertflow {
namespace {

struct Qwen3MoeConfig {
  DecoderConfig decoder;
  int32_t dense_intermediate = 0;
  bool attention_bias = false;
};

Result<Qwen3MoeConfig> ReadQwen3MoeConfig(const JsonConfig& json) {
  Qwen3MoeConfig config;
  ASSIGN_OR_RETURN(config.decoder,
                   ReadDecoderConfig(json, {.architecture = "Qwen3MoeForCausalLM"}));
  ModelShape& shape = config.decoder.shape;
  ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", false));
  RETURN_IF_ERROR(ReadExpertSizes(json, {}, &config.decoder));
  ASSIGN_OR_RETURN(config.dense_intermediate, json.Int("intermediate_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(config.decoder.router.normalise, json.BoolOr("norm_topk_prob", false));
  RETURN_IF_ERROR(ReadSparseLayers(json, &shape));
  RETURN_IF_ERROR(CheckUnusedWindow(json, shape));
  RETURN_IF_ERROR(FinishDecoderConfig(json, &config.decoder));
  const bool has_dense = static_cast<int32_t>(shape.moe_layers.size()) < shape.layers;
  shape.intermediate_max = has_dense ? config.dense_intermediate : 0;
  return config;
}

DecoderLayer DeclareLayer(const Qwen3MoeConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  DeclareProjections(shape, attention, config.attention_bias, config.attention_bias, table,
                     &layer.attention);
  layer.attention.q_norm = table->Vector(attention + "q_norm.weight", shape.head_dim);
  layer.attention.k_norm = table->Vector(attention + "k_norm.weight", shape.head_dim);
  if (IsMoeLayer(shape, index)) {
    layer.router = table->Router(mlp + "gate", shape.experts, shape.hidden, false);
  } else {
    layer.mlp = table->Mlp(mlp, shape.hidden, config.dense_intermediate);
  }
  return layer;
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeQwen3Moe(const JsonConfig& json) {
  ASSIGN_OR_RETURN(const Qwen3MoeConfig config, ReadQwen3MoeConfig(json));
  return MakeDecoder(config.decoder, UsualTables(config, DeclareLayer));
}

}  // namespace expertflow
