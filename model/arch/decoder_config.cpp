#include "model/arch/decoder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/arch/config_keys.h"

namespace expertflow {
namespace {

// Of all layers: ten times what the largest models have. Bounds what a config can make us allocate.
constexpr int64_t kExpertsMax = 1 << 18;

Status ReadHeads(const JsonConfig& json, const DecoderDefaults& defaults, ModelShape* shape) {
  ASSIGN_OR_RETURN(shape->kv_heads,
                   json.IntOr("num_key_value_heads", 1, shape->heads, shape->heads));
  const int32_t head_dim =
      defaults.head_dim > 0 ? defaults.head_dim : std::max(1, shape->hidden / shape->heads);
  ASSIGN_OR_RETURN(shape->head_dim, json.IntOr("head_dim", 1, 4096, head_dim));
  if (defaults.head_dim == 0 && !json.Has("head_dim") && shape->hidden % shape->heads != 0) {
    return json.Error("num_attention_heads", fmt::format("{} heads do not divide hidden_size {}",
                                                         shape->heads, shape->hidden));
  }
  if (shape->heads % shape->kv_heads != 0) {
    return json.Error(
        "num_key_value_heads",
        fmt::format("{} key/value heads do not divide {} heads", shape->kv_heads, shape->heads));
  }
  if (shape->head_dim % 2 != 0) {
    return json.Error("head_dim",
                      fmt::format("{} is odd; rotary embedding needs pairs", shape->head_dim));
  }
  return OkStatus();
}

Status CheckQuantisation(const JsonConfig& json, const DecoderDefaults& defaults,
                         const Quantisation& quantisation) {
  using Method = Quantisation::Method;
  const Method method = quantisation.method;
  if (method == Method::kNone || method == Method::kGguf ||
      (method == Method::kMxfp4) == defaults.fused_experts) {
    return OkStatus();
  }
  return json.Error(
      "quantization_config",
      fmt::format("'{}' is not supported for {}", QuantisationName(method), defaults.architecture));
}

}  // namespace

Result<DecoderConfig> ReadDecoderConfig(const JsonConfig& json, const DecoderDefaults& defaults,
                                        bool latent) {
  RETURN_IF_ERROR(RefuseCommonUnsupported(json));
  DecoderConfig config;
  ModelShape& shape = config.shape;
  shape.architecture = defaults.architecture;
  ASSIGN_OR_RETURN(config.quantisation, ReadQuantisation(json));
  RETURN_IF_ERROR(CheckQuantisation(json, defaults, config.quantisation));
  ASSIGN_OR_RETURN(shape.layers, json.Int("num_hidden_layers", 1, 1024));
  ASSIGN_OR_RETURN(shape.hidden, json.Int("hidden_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(shape.heads, json.Int("num_attention_heads", 1, 4096));
  if (!latent) RETURN_IF_ERROR(ReadHeads(json, defaults, &shape));
  ASSIGN_OR_RETURN(shape.vocab, json.Int("vocab_size", 1, 1 << 24));
  ASSIGN_OR_RETURN(shape.context, json.Int("max_position_embeddings", 1, 1 << 26));
  ASSIGN_OR_RETURN(const std::string activation, json.StringOr("hidden_act", "silu"));
  if (activation != "silu") {
    return json.Error("hidden_act", fmt::format("expected \"silu\", found \"{}\"", activation));
  }
  ASSIGN_OR_RETURN(const double eps, json.NumberOr("rms_norm_eps", 0, 1, defaults.norm_eps));
  config.norm_eps = static_cast<float>(eps);
  ASSIGN_OR_RETURN(config.tied_embeddings, json.BoolOr("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(json, defaults.rope, shape.context));
  if (config.rope.yarn) {  // some configs keep the length before scaling
    const double scaled = config.rope.yarn->factor * config.rope.yarn->original_context;
    shape.context = static_cast<int32_t>(
        std::min<double>(1 << 26, std::max(static_cast<double>(shape.context), scaled)));
  }
  ASSIGN_OR_RETURN(const auto stop, json.IntList("eos_token_id", 0, shape.vocab - 1));
  shape.stop_tokens.assign(stop.begin(), stop.end());
  return config;
}

Status ReadExpertSizes(const JsonConfig& json, const ExpertKeys& keys, DecoderConfig* config) {
  ModelShape& shape = config->shape;
  ASSIGN_OR_RETURN(shape.experts, json.Int(keys.experts, 1, 4096));
  ASSIGN_OR_RETURN(shape.top_k, json.Int(keys.top_k, 1, shape.experts));
  ASSIGN_OR_RETURN(shape.expert_intermediate, json.Int(keys.intermediate, 1, 1 << 20));
  return OkStatus();
}

void SetMoeLayersFrom(int32_t dense, ModelShape* shape) {
  for (int32_t layer = dense; layer < shape->layers; ++layer) shape->moe_layers.push_back(layer);
}

Status ReadSparseLayers(const JsonConfig& json, ModelShape* shape) {
  ASSIGN_OR_RETURN(const int64_t step, json.IntOr("decoder_sparse_step", 1, 1 << 20, 1));
  ASSIGN_OR_RETURN(const auto dense, json.IntList("mlp_only_layers", 0, shape->layers - 1));
  for (int32_t layer = 0; layer < shape->layers; ++layer) {
    const bool excluded = std::find(dense.begin(), dense.end(), layer) != dense.end();
    if (!excluded && (layer + 1) % step == 0) shape->moe_layers.push_back(layer);
  }
  return OkStatus();
}

Status CheckUnusedWindow(const JsonConfig& json, const ModelShape& shape) {
  ASSIGN_OR_RETURN(const bool used, json.BoolOr("use_sliding_window", false));
  ASSIGN_OR_RETURN(const int64_t window, json.IntOr("sliding_window", 1, 1 << 30, 1 << 30));
  ASSIGN_OR_RETURN(const int64_t first, json.IntOr("max_window_layers", 0, 1 << 20, 28));
  ASSIGN_OR_RETURN(const auto types, json.StringList("layer_types"));
  bool sliding = used && first < shape.layers;
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return json.Error("layer_types", fmt::format("'{}' is not supported", type));
    }
  }
  if (!types.empty()) {
    sliding = std::any_of(types.begin(), types.end(),
                          [](const std::string& type) { return type != "full_attention"; });
  }
  if (sliding && window < shape.context) {
    return json.Error(types.empty() ? "use_sliding_window" : "layer_types",
                      fmt::format("attention windows ({} of {} positions) are not supported",
                                  window, shape.context));
  }
  return OkStatus();
}

Status FinishDecoderConfig(const JsonConfig& json, DecoderConfig* config) {
  RETURN_IF_ERROR(RefuseUnknownKeys(json));
  ModelShape& shape = config->shape;
  const auto experts = static_cast<int64_t>(shape.moe_layers.size()) * shape.experts;
  if (experts > kExpertsMax) {
    return json.Error("num_hidden_layers",
                      fmt::format("{} layers of {} experts are more than {} experts",
                                  shape.moe_layers.size(), shape.experts, kExpertsMax));
  }
  const LatentShape& latent = config->latent;
  if (latent.kv_rank > 0) {
    config->rotary_dim = latent.rope_dim;
    shape.kv = {1, latent.kv_rank + latent.rope_dim, latent.kv_rank};
    shape.kv_heads = shape.heads;
    shape.head_dim = latent.nope_dim + latent.rope_dim;
  } else {
    config->rotary_dim =
        static_cast<int32_t>(static_cast<double>(shape.head_dim) * config->rope.partial_rotary);
    if (config->rotary_dim < 2 || config->rotary_dim % 2 != 0) {
      return json.Error("partial_rotary_factor",
                        fmt::format("{} of a head of {} is not a positive, even number of elements",
                                    config->rope.partial_rotary, shape.head_dim));
    }
    shape.kv = {shape.kv_heads, shape.head_dim, 0};
  }
  config->attention_scale = static_cast<float>(config->rope.AttentionFactor() /
                                               std::sqrt(static_cast<double>(shape.head_dim)));
  return OkStatus();
}

}  // namespace expertflow
