// gpt-oss: grouped-query attention with biases, a sink of its own for each head, and windows on
// every other layer; the chosen experts' logits go through the softmax; experts have biases and a
// clamped activation, and lie together in one tensor a layer, transposed, gate and up alternating.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "model/arch/decoder_config.h"
#include "model/arch/families.h"

namespace expertflow {
namespace {

constexpr float kSwigluAlpha = 1.702f;  // fixed in the published code

struct GptOssConfig {
  DecoderConfig decoder;
  bool attention_bias = true;
  std::vector<int32_t> windows;  // by layer; 0: none
};

Status ReadWindows(const JsonConfig& json, GptOssConfig* config) {
  const int32_t layers = config->decoder.shape.layers;
  ASSIGN_OR_RETURN(const int32_t window, json.IntOr("sliding_window", 1, 1 << 30, 128));
  ASSIGN_OR_RETURN(const auto types, json.StringList("layer_types"));
  if (!types.empty() && static_cast<int32_t>(types.size()) != layers) {
    return json.Error("layer_types",
                      fmt::format("expected {} entries, found {}", layers, types.size()));
  }
  for (int32_t layer = 0; layer < layers; ++layer) {
    bool sliding = layer % 2 == 0;
    if (!types.empty()) {
      sliding = types[layer] == "sliding_attention";
      if (!sliding && types[layer] != "full_attention") {
        return json.Error("layer_types", fmt::format("'{}' is not supported", types[layer]));
      }
    }
    config->windows.push_back(sliding ? window : 0);
  }
  return OkStatus();
}

Result<GptOssConfig> ReadGptOssConfig(const JsonConfig& json) {
  GptOssConfig config;
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(decoder, ReadDecoderConfig(json, {.architecture = "GptOssForCausalLM",
                                                     .norm_eps = 1e-5,
                                                     .rope = {.default_theta = 150000.0},
                                                     .head_dim = 64,
                                                     .fused_experts = true}));
  ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", true));
  RETURN_IF_ERROR(ReadExpertSizes(
      json, {.experts = "num_local_experts", .intermediate = "intermediate_size"}, &decoder));
  ASSIGN_OR_RETURN(const int32_t top_k,
                   json.IntOr("experts_per_token", 1, 4096, decoder.shape.top_k));
  if (top_k != decoder.shape.top_k) {
    return json.Error("experts_per_token", fmt::format("{} contradicts num_experts_per_tok {}",
                                                       top_k, decoder.shape.top_k));
  }
  SetMoeLayersFrom(0, &decoder.shape);
  decoder.router.scores = RouterShape::Scores::kSoftmaxOfChosen;
  ASSIGN_OR_RETURN(const double limit, json.NumberOr("swiglu_limit", 1e-6, 1e30, 7.0));
  decoder.expert_activation = {Activation::Kind::kClampedSwiglu, kSwigluAlpha,
                               static_cast<float>(limit)};
  RETURN_IF_ERROR(ReadWindows(json, &config));
  json.Ignore("initial_context_length");  // rope_scaling says it where it matters
  RETURN_IF_ERROR(FinishDecoderConfig(json, &decoder));
  return config;
}

DecoderLayer DeclareLayer(const GptOssConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  const std::string attention = prefix + "self_attn.";
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  DeclareProjections(shape, attention, config.attention_bias, config.attention_bias, table,
                     &layer.attention);
  layer.attention.sinks = table->Vector(attention + "sinks", shape.heads);
  layer.attention.window = config.windows[index];
  layer.router = table->Router(prefix + "mlp.router", shape.experts, shape.hidden, true);
  return layer;
}

// gate_up_proj[expert][hidden][2 wide] and down_proj[expert][wide][hidden] hold what is multiplied
// from the right; gate and up alternate. In MXFP4 the last two dimensions are the other way round.
ExpertSpec DeclareFusedExpert(const DecoderConfig& config, int32_t layer, int32_t expert) {
  const ModelShape& shape = config.shape;
  const bool by_output = config.quantisation.method == Quantisation::Method::kMxfp4;
  const int64_t experts = shape.experts, hidden = shape.hidden, wide = shape.expert_intermediate;
  const std::string prefix = LayerPrefix(layer) + "mlp.experts.";
  const std::string name = fmt::format("{}{}.", prefix, expert);
  const auto gate_up = [&](int64_t part) {
    if (by_output) {
      return TensorSlice{prefix + "gate_up_proj",
                         {experts, 2 * wide, hidden},
                         (expert * 2 * wide + part) * hidden,
                         {2 * hidden, 1}};
    }
    return TensorSlice{prefix + "gate_up_proj",
                       {experts, hidden, 2 * wide},
                       expert * hidden * 2 * wide + part,
                       {2, 2 * wide}};
  };
  const auto gate_up_bias = [&](int64_t part) {
    return TensorSlice{
        prefix + "gate_up_proj_bias", {experts, 2 * wide}, expert * 2 * wide + part, {2}};
  };
  ExpertSpec spec;
  spec.key = {LayerId(layer), ExpertId(expert)};
  spec.gate = {name + "gate", {wide, hidden}, gate_up(0)};
  spec.up = {name + "up", {wide, hidden}, gate_up(1)};
  TensorSlice down{
      prefix + "down_proj", {experts, wide, hidden}, expert * wide * hidden, {1, hidden}};
  if (by_output) {
    down.shape = {experts, hidden, wide};
    down.strides = {wide, 1};
  }
  spec.down = {name + "down", {hidden, wide}, std::move(down)};
  spec.has_biases = true;
  spec.gate_bias = {name + "gate_bias", {wide}, gate_up_bias(0)};
  spec.up_bias = {name + "up_bias", {wide}, gate_up_bias(1)};
  spec.down_bias = {
      name + "down_bias",
      {hidden},
      TensorSlice{prefix + "down_proj_bias", {experts, hidden}, expert * hidden, {1}}};
  return spec;
}

// As GGUF files keep them: gate and up apart.
ExpertSpec DeclareSingleExpert(const ModelShape& shape, int32_t layer, int32_t expert) {
  const std::string prefix = LayerPrefix(layer) + "mlp.experts.";
  ExpertSpec spec = DeclareExpert(shape, layer, expert, prefix);
  const auto bias = [&](const char* matrix, int64_t size) {
    return TensorSpec{fmt::format("{}{}.{}.bias", prefix, expert, matrix), {size}, {}};
  };
  spec.has_biases = true;
  spec.gate_bias = bias("gate_proj", shape.expert_intermediate);
  spec.up_bias = bias("up_proj", shape.expert_intermediate);
  spec.down_bias = bias("down_proj", shape.hidden);
  return spec;
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeGptOss(const JsonConfig& json) {
  ASSIGN_OR_RETURN(const GptOssConfig config, ReadGptOssConfig(json));
  DecoderTables tables;
  tables.layer = [config](int32_t layer, WeightTable* table) {
    return DeclareLayer(config, layer, table);
  };
  tables.expert = [decoder = config.decoder](int32_t layer, int32_t expert) {
    return decoder.quantisation.method == Quantisation::Method::kGguf
               ? DeclareSingleExpert(decoder.shape, layer, expert)
               : DeclareFusedExpert(decoder, layer, expert);
  };
  return MakeDecoder(config.decoder, std::move(tables));
}

}  // namespace expertflow
