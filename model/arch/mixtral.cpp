// Mixtral: grouped-query attention, perhaps with a window over all layers; softmax top-k routing
// with renormalised weights; every layer has experts, under names of its own.
#include "model/arch/decoder_config.h"
#include "model/arch/families.h"

namespace expertflow {
namespace {

struct MixtralConfig {
  DecoderConfig decoder;
  int32_t window = 0;
};

Result<MixtralConfig> ReadMixtralConfig(const JsonConfig& json) {
  MixtralConfig config;
  ASSIGN_OR_RETURN(config.decoder, ReadDecoderConfig(json, {.architecture = "MixtralForCausalLM",
                                                            .norm_eps = 1e-5,
                                                            .rope = {.default_theta = 1e6}}));
  RETURN_IF_ERROR(
      ReadExpertSizes(json, {.experts = "num_local_experts", .intermediate = "intermediate_size"},
                      &config.decoder));
  SetMoeLayersFrom(0, &config.decoder.shape);
  config.decoder.router.normalise = true;
  ASSIGN_OR_RETURN(config.window, json.IntOr("sliding_window", 1, 1 << 30, 0));
  RETURN_IF_ERROR(FinishDecoderConfig(json, &config.decoder));
  return config;
}

DecoderLayer DeclareLayer(const MixtralConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  DeclareProjections(shape, prefix + "self_attn.", false, false, table, &layer.attention);
  layer.attention.window = config.window;
  layer.router =
      table->Router(prefix + "block_sparse_moe.gate", shape.experts, shape.hidden, false);
  return layer;
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeMixtral(const JsonConfig& json) {
  ASSIGN_OR_RETURN(const MixtralConfig config, ReadMixtralConfig(json));
  DecoderTables tables;
  tables.layer = [config](int32_t layer, WeightTable* table) {
    return DeclareLayer(config, layer, table);
  };
  tables.expert = [shape = config.decoder.shape](int32_t layer, int32_t expert) {
    return DeclareExpert(shape, layer, expert, LayerPrefix(layer) + "block_sparse_moe.experts.",
                         "w1", "w3", "w2");
  };
  return MakeDecoder(config.decoder, std::move(tables));
}

}  // namespace expertflow
