// Granite 3 MoE: grouped-query attention, softmax over the chosen experts; embedding, attention
// scores, what a block adds to the residual stream, and the logits each have a factor of their own.
// Experts lie together in two tensors a layer, gate and up one after the other.
#include <fmt/format.h>

#include <string>

#include "model/arch/decoder_config.h"
#include "model/arch/families.h"

namespace expertflow {
namespace {

struct GraniteMoeConfig {
  DecoderConfig decoder;
  bool attention_bias = false;
};

Result<float> ReadFactor(const JsonConfig& json, const char* key) {
  ASSIGN_OR_RETURN(const double factor, json.NumberOr(key, 1e-6, 1e6, 1.0));
  return static_cast<float>(factor);
}

Result<GraniteMoeConfig> ReadGraniteMoeConfig(const JsonConfig& json) {
  GraniteMoeConfig config;
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(decoder, ReadDecoderConfig(json, {.architecture = "GraniteMoeForCausalLM"}));
  if (decoder.quantisation.method != Quantisation::Method::kNone) {
    return json.Error("quantization_config", "not supported for GraniteMoeForCausalLM");
  }
  RETURN_IF_ERROR(ReadExpertSizes(
      json, {.experts = "num_local_experts", .intermediate = "intermediate_size"}, &decoder));
  SetMoeLayersFrom(0, &decoder.shape);
  decoder.router.scores = RouterShape::Scores::kSoftmaxOfChosen;
  ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", false));
  ASSIGN_OR_RETURN(decoder.embedding_factor, ReadFactor(json, "embedding_multiplier"));
  ASSIGN_OR_RETURN(decoder.residual_factor, ReadFactor(json, "residual_multiplier"));
  ASSIGN_OR_RETURN(const float attention, ReadFactor(json, "attention_multiplier"));
  ASSIGN_OR_RETURN(const float logits, ReadFactor(json, "logits_scaling"));
  decoder.logit_factor = 1 / logits;
  // Older configs name the activation so.
  ASSIGN_OR_RETURN(const std::string older, json.StringOr("activation_function", "silu"));
  if (older != "silu") {
    return json.Error("activation_function", fmt::format("expected \"silu\", found \"{}\"", older));
  }
  RETURN_IF_ERROR(FinishDecoderConfig(json, &decoder));
  decoder.attention_scale = static_cast<float>(decoder.rope.AttentionFactor() * attention);
  return config;
}

DecoderLayer DeclareLayer(const GraniteMoeConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  DeclareProjections(shape, prefix + "self_attn.", config.attention_bias, config.attention_bias,
                     table, &layer.attention);
  layer.router =
      table->Router(prefix + "block_sparse_moe.router.layer", shape.experts, shape.hidden, false);
  return layer;
}

// input_linear[expert][gate rows, then up rows][hidden], output_linear[expert][hidden][wide].
ExpertSpec DeclareFusedExpert(const ModelShape& shape, int32_t layer, int32_t expert) {
  const int64_t experts = shape.experts, hidden = shape.hidden, wide = shape.expert_intermediate;
  const std::string prefix = LayerPrefix(layer) + "block_sparse_moe.";
  const std::string name = fmt::format("{}experts.{}.", prefix, expert);
  const auto input = [&](int64_t part) {
    return TensorSlice{prefix + "input_linear.weight",
                       {experts, 2 * wide, hidden},
                       (expert * 2 + part) * wide * hidden,
                       {hidden, 1}};
  };
  ExpertSpec spec;
  spec.key = {LayerId(layer), ExpertId(expert)};
  spec.gate = {name + "gate", {wide, hidden}, input(0)};
  spec.up = {name + "up", {wide, hidden}, input(1)};
  spec.down = {name + "down",
               {hidden, wide},
               TensorSlice{prefix + "output_linear.weight",
                           {experts, hidden, wide},
                           expert * hidden * wide,
                           {wide, 1}}};
  return spec;
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeGraniteMoe(const JsonConfig& json) {
  ASSIGN_OR_RETURN(const GraniteMoeConfig config, ReadGraniteMoeConfig(json));
  DecoderTables tables;
  tables.layer = [config](int32_t layer, WeightTable* table) {
    return DeclareLayer(config, layer, table);
  };
  tables.expert = [shape = config.decoder.shape](int32_t layer, int32_t expert) {
    return DeclareFusedExpert(shape, layer, expert);
  };
  return MakeDecoder(config.decoder, std::move(tables));
}

}  // namespace expertflow
