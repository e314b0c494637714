// GLM-4.5: grouped-query attention with biases, rotation of a part of each head and, in the large
// model, norms of query and key heads; sigmoid routing with a correction that only chooses; ungated
// shared experts; the first layers are dense. The layers after the last one that predict further
// tokens are not needed.

#include "model/arch/decoder_config.h"
#include "model/arch/families.h"
#include "model/arch/shared_experts.h"

namespace expertflow {
namespace {

struct Glm4MoeConfig {
  DecoderConfig decoder;
  SharedExpertConfig experts;
  bool attention_bias = false;
  bool qk_norm = false;
};

Result<Glm4MoeConfig> ReadGlm4MoeConfig(const JsonConfig& json) {
  Glm4MoeConfig config;
  ASSIGN_OR_RETURN(config.decoder, ReadDecoderConfig(json, {.architecture = "Glm4MoeForCausalLM",
                                                            .norm_eps = 1e-5,
                                                            .rope = {.default_partial_rotary = 0.5},
                                                            .head_dim = 128}));
  ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", false));
  ASSIGN_OR_RETURN(config.qk_norm, json.BoolOr("use_qk_norm", false));
  ASSIGN_OR_RETURN(config.experts, ReadSharedExpertConfig(json, &config.decoder));
  RETURN_IF_ERROR(ReadNoauxRouter(json, &config.decoder));
  RETURN_IF_ERROR(FinishDecoderConfig(json, &config.decoder));
  return config;
}

DecoderLayer DeclareLayer(const Glm4MoeConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  const std::string attention = prefix + "self_attn.";
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  DeclareProjections(shape, attention, config.attention_bias, false, table, &layer.attention);
  if (config.qk_norm) {
    layer.attention.q_norm = table->Vector(attention + "q_norm.weight", shape.head_dim);
    layer.attention.k_norm = table->Vector(attention + "k_norm.weight", shape.head_dim);
  }
  DeclareSharedExpertMlp(shape, config.experts, index, table, &layer);
  if (IsMoeLayer(shape, index)) DeclareCorrection(shape, index, table, &layer);
  return layer;
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeGlm4Moe(const JsonConfig& json) {
  ASSIGN_OR_RETURN(const Glm4MoeConfig config, ReadGlm4MoeConfig(json));
  DecoderTables tables = UsualTables(config, DeclareLayer);
  tables.ignored_prefixes = config.experts.ignored_prefixes;
  return MakeDecoder(config.decoder, std::move(tables));
}

}  // namespace expertflow
