// DeepSeek-V2, V2-Lite, V3, R1 (and Moonlight): multi-head latent attention, dense layers first,
// ungated shared experts. V2 routes by softmax, perhaps within the best groups; V3 by corrected
// sigmoid scores.
#include <fmt/format.h>

#include <string>

#include "model/arch/decoder_config.h"
#include "model/arch/families.h"
#include "model/arch/shared_experts.h"

namespace expertflow {
namespace {

struct DeepseekConfig {
  DecoderConfig decoder;
  SharedExpertConfig experts;
  bool attention_bias = false;
  bool corrected = false;  // the router has a correction
};

// A derived size that newer configs write out: it must be what follows from the rest.
Status CheckDerived(const JsonConfig& json, const char* key, int64_t expected) {
  ASSIGN_OR_RETURN(const int64_t found, json.IntOr(key, 0, 1 << 20, expected));
  if (found == expected) return OkStatus();
  return json.Error(key, fmt::format("expected {}, found {}", expected, found));
}

Status ReadLatent(const JsonConfig& json, DecoderConfig* config) {
  LatentShape& latent = config->latent;
  ASSIGN_OR_RETURN(latent.q_rank, json.IntOr("q_lora_rank", 1, 1 << 20, 0));
  ASSIGN_OR_RETURN(latent.kv_rank, json.Int("kv_lora_rank", 1, 1 << 16));
  ASSIGN_OR_RETURN(latent.nope_dim, json.Int("qk_nope_head_dim", 1, 4096));
  ASSIGN_OR_RETURN(latent.rope_dim, json.Int("qk_rope_head_dim", 2, 4096));
  ASSIGN_OR_RETURN(latent.value_dim, json.Int("v_head_dim", 1, 4096));
  if (latent.rope_dim % 2 != 0) {
    return json.Error("qk_rope_head_dim",
                      fmt::format("{} is odd; rotary embedding needs pairs", latent.rope_dim));
  }
  RETURN_IF_ERROR(CheckDerived(json, "num_key_value_heads", config->shape.heads));
  RETURN_IF_ERROR(CheckDerived(json, "head_dim", latent.rope_dim));
  return CheckDerived(json, "qk_head_dim", latent.nope_dim + latent.rope_dim);
}

Status ExpectText(const JsonConfig& json, const char* key, const char* expected) {
  ASSIGN_OR_RETURN(const std::string found, json.StringOr(key, expected));
  if (found == expected) return OkStatus();
  return json.Error(key, fmt::format("expected \"{}\", found \"{}\"", expected, found));
}

Status ReadV2Router(const JsonConfig& json, DecoderConfig* config) {
  RETURN_IF_ERROR(ExpectText(json, "scoring_func", "softmax"));
  ASSIGN_OR_RETURN(const std::string method, json.StringOr("topk_method", "greedy"));
  RETURN_IF_ERROR(ReadExpertGroups(json, config));
  if (method == "greedy") {
    config->router.groups = 1;
    config->router.groups_kept = 1;
  } else if (method != "group_limited_greedy") {
    return json.Error(
        "topk_method",
        fmt::format("expected \"greedy\" or \"group_limited_greedy\", found \"{}\"", method));
  }
  ASSIGN_OR_RETURN(const bool normalise, json.BoolOr("norm_topk_prob", false));
  if (normalise) {
    return json.Error("norm_topk_prob",
                      "true is not supported for DeepSeek-V2: published codes disagree about it");
  }
  ASSIGN_OR_RETURN(const double scale, json.NumberOr("routed_scaling_factor", 1e-6, 1e6, 1.0));
  config->router.scale = static_cast<float>(scale);
  return OkStatus();
}

Result<DeepseekConfig> ReadDeepseekConfig(const JsonConfig& json, bool v3) {
  DeepseekConfig config;
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(
      decoder,
      ReadDecoderConfig(
          json, {.architecture = v3 ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM"}, true));
  RETURN_IF_ERROR(ReadLatent(json, &decoder));
  ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", false));
  ASSIGN_OR_RETURN(const bool mlp_bias, json.BoolOr("mlp_bias", false));
  if (mlp_bias) return json.Error("mlp_bias", "true is not supported");
  ASSIGN_OR_RETURN(const bool interleaved, json.BoolOr("rope_interleave", true));
  if (!interleaved && !v3) return json.Error("rope_interleave", "false is not supported here");
  decoder.rope_pairs = interleaved ? RopePairs::kNeighbours : RopePairs::kHalves;
  ASSIGN_OR_RETURN(config.experts, ReadSharedExpertConfig(json, &decoder));
  if (v3) {
    RETURN_IF_ERROR(ExpectText(json, "scoring_func", "sigmoid"));
    RETURN_IF_ERROR(ExpectText(json, "topk_method", "noaux_tc"));
    RETURN_IF_ERROR(ReadNoauxRouter(json, &decoder));
    config.corrected = true;
  } else {
    RETURN_IF_ERROR(ReadV2Router(json, &decoder));
  }
  for (const char* key : {"aux_loss_alpha", "ep_size", "seq_aux"}) json.Ignore(key);
  RETURN_IF_ERROR(FinishDecoderConfig(json, &decoder));
  return config;
}

LatentAttentionWeights DeclareAttention(const DeepseekConfig& config, const std::string& prefix,
                                        WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const LatentShape& latent = config.decoder.latent;
  const int64_t heads = shape.heads;
  const int64_t q_size = heads * (latent.nope_dim + latent.rope_dim);
  LatentAttentionWeights weights;
  if (latent.q_rank > 0) {
    weights.q_a =
        table->Linear(prefix + "q_a_proj", latent.q_rank, shape.hidden, config.attention_bias);
    weights.q_a_norm = table->Vector(prefix + "q_a_layernorm.weight", latent.q_rank);
    weights.q = table->Matrix(prefix + "q_b_proj.weight", q_size, latent.q_rank);
  } else {
    weights.q = table->Matrix(prefix + "q_proj.weight", q_size, shape.hidden);
  }
  weights.kv_a = table->Linear(prefix + "kv_a_proj_with_mqa", latent.kv_rank + latent.rope_dim,
                               shape.hidden, config.attention_bias);
  weights.kv_a_norm = table->Vector(prefix + "kv_a_layernorm.weight", latent.kv_rank);
  weights.kv_b = table->Matrix(prefix + "kv_b_proj.weight",
                               heads * (latent.nope_dim + latent.value_dim), latent.kv_rank);
  weights.o = table->Linear(prefix + "o_proj", shape.hidden, heads * latent.value_dim,
                            config.attention_bias);
  return weights;
}

DecoderLayer DeclareLayer(const DeepseekConfig& config, int32_t index, WeightTable* table) {
  const ModelShape& shape = config.decoder.shape;
  const std::string prefix = LayerPrefix(index);
  DecoderLayer layer;
  DeclareNorms(shape, prefix, table, &layer);
  layer.latent = DeclareAttention(config, prefix + "self_attn.", table);
  DeclareSharedExpertMlp(shape, config.experts, index, table, &layer);
  if (config.corrected && IsMoeLayer(shape, index)) DeclareCorrection(shape, index, table, &layer);
  return layer;
}

Result<std::unique_ptr<Architecture>> Make(const JsonConfig& json, bool v3) {
  ASSIGN_OR_RETURN(const DeepseekConfig config, ReadDeepseekConfig(json, v3));
  DecoderTables tables = UsualTables(config, DeclareLayer);
  tables.ignored_prefixes = config.experts.ignored_prefixes;
  return MakeDecoder(config.decoder, std::move(tables));
}

}  // namespace

Result<std::unique_ptr<Architecture>> MakeDeepseekV2(const JsonConfig& json) {
  return Make(json, false);
}

Result<std::unique_ptr<Architecture>> MakeDeepseekV3(const JsonConfig& json) {
  return Make(json, true);
}

}  // namespace expertflow
