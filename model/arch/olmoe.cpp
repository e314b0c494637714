// OLMoE: attention with norms over the whole query and key projections and, perhaps, clipping;
// softmax top-k routing, mostly not renormalised; every layer has experts.
#include "model/arch/decoder_config.h"
#include "model/arch/families.h"

namespace expertflow {
namespace {

struct OlmoeConfig {
  DecoderConfig decoder;
  bool attention_bias = false;
};

Result<OlmoeConfig> ReadOlmoeConfig(const JsonConfig& json) {
  OlmoeConfig config;
  ASSIGN_OR_RETURN(config.decoder,
                   ReadDecoderConfig(json, {.architecture = "OlmoeForCausalLM", .norm_eps = 1e-5}));
  RETURN_IF_ERROR(ReadExpertSizes(json, {.intermediate = "intermediate_size"}, &config.decoder));
  SetMoeLayersFrom(0, &config.decoder.shape);
  ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", false));
  ASSIGN_OR_RETURN(config.decoder.router.normalise, json.BoolOr("norm_topk_prob", false));
  if (json.Has("clip_qkv")) {
    ASSIGN_OR_RETURN(const double clip, json.Number("clip_qkv", 1e-6, 1e30));
    config.decoder.qkv_clip = static_cast<float>(clip);
  }
  RETURN_IF_ERROR(FinishDecoderConfig(json, &config.decoder));
  return config;
}

DecoderLayer DeclareLayer(const OlmoeConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  const std::string attention = prefix + "self_attn.";
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  DeclareProjections(shape, attention, config.attention_bias, config.attention_bias, table,
                     &layer.attention);
  layer.attention.q_norm =
      table->Vector(attention + "q_norm.weight", int64_t{shape.heads} * shape.head_dim);
  layer.attention.k_norm =
      table->Vector(attention + "k_norm.weight", int64_t{shape.kv_heads} * shape.head_dim);
  layer.router = table->Router(prefix + "mlp.gate", shape.experts, shape.hidden, false);
  return layer;
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeOlmoe(const JsonConfig& json) {
  ASSIGN_OR_RETURN(const OlmoeConfig config, ReadOlmoeConfig(json));
  return MakeDecoder(config.decoder, UsualTables(config, DeclareLayer));
}

}  // namespace expertflow
