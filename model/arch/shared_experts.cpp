#include "model/arch/shared_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/arch/decoder_config.h"

namespace expertflow {

Result<SharedExpertConfig> ReadSharedExpertConfig(const JsonConfig& json, DecoderConfig* decoder) {
  SharedExpertConfig config;
  ModelShape& shape = decoder->shape;
  RETURN_IF_ERROR(ReadExpertSizes(json, {.experts = "n_routed_experts"}, decoder));
  ASSIGN_OR_RETURN(config.dense_intermediate, json.Int("intermediate_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(const int64_t shared, json.IntOr("n_shared_experts", 0, 1024, 0));
  config.shared_intermediate = static_cast<int32_t>(shared) * shape.expert_intermediate;
  ASSIGN_OR_RETURN(const int64_t dense, json.IntOr("first_k_dense_replace", 0, shape.layers, 0));
  ASSIGN_OR_RETURN(const int64_t step, json.IntOr("moe_layer_freq", 1, 1 << 20, 1));
  if (step != 1) return json.Error("moe_layer_freq", "only 1 is supported");
  SetMoeLayersFrom(static_cast<int32_t>(dense), &shape);
  const bool has_moe = !shape.moe_layers.empty();
  shape.intermediate_max =
      std::max(has_moe ? config.shared_intermediate : 0, dense > 0 ? config.dense_intermediate : 0);
  ASSIGN_OR_RETURN(const int64_t further, json.IntOr("num_nextn_predict_layers", 0, 1024, 0));
  for (int64_t i = 0; i < further; ++i) {
    config.ignored_prefixes.push_back(LayerPrefix(shape.layers + static_cast<int32_t>(i)));
  }
  return config;
}

Status ReadExpertGroups(const JsonConfig& json, DecoderConfig* config) {
  const int32_t experts = config->shape.experts;
  RouterShape& router = config->router;
  ASSIGN_OR_RETURN(router.groups, json.IntOr("n_group", 1, experts, 1));
  ASSIGN_OR_RETURN(router.groups_kept, json.IntOr("topk_group", 1, router.groups, 1));
  if (experts % router.groups != 0) {
    return json.Error("n_group",
                      fmt::format("{} groups do not divide {} experts", router.groups, experts));
  }
  if (config->shape.top_k > experts / router.groups * router.groups_kept) {
    return json.Error("topk_group",
                      fmt::format("{} of {} groups hold fewer than the {} experts of a token",
                                  router.groups_kept, router.groups, config->shape.top_k));
  }
  return OkStatus();
}

Status ReadNoauxRouter(const JsonConfig& json, DecoderConfig* config) {
  RouterShape& router = config->router;
  router.scores = RouterShape::Scores::kSigmoid;
  router.group_score = RouterShape::GroupScore::kSumOfTwo;
  RETURN_IF_ERROR(ReadExpertGroups(json, config));
  if (router.groups > 1 && config->shape.experts / router.groups < 2) {
    return json.Error("n_group", "a group needs two experts or more: two make its score");
  }
  ASSIGN_OR_RETURN(router.normalise, json.BoolOr("norm_topk_prob", true));
  ASSIGN_OR_RETURN(const double scale, json.NumberOr("routed_scaling_factor", 1e-6, 1e6, 1.0));
  router.scale = static_cast<float>(scale);
  return OkStatus();
}

void DeclareSharedExpertMlp(const ModelShape& shape, const SharedExpertConfig& config,
                            int32_t index, WeightTable* table, DecoderLayer* layer) {
  const std::string mlp = LayerPrefix(index) + "mlp.";
  if (!IsMoeLayer(shape, index)) {
    layer->mlp = table->Mlp(mlp, shape.hidden, config.dense_intermediate);
    return;
  }
  layer->router = table->Router(mlp + "gate", shape.experts, shape.hidden, false);
  if (config.shared_intermediate > 0) {
    layer->mlp = table->Mlp(mlp + "shared_experts.", shape.hidden, config.shared_intermediate);
  }
}

void DeclareCorrection(const ModelShape& shape, int32_t index, WeightTable* table,
                       DecoderLayer* layer) {
  layer->correction =
      table->Vector(LayerPrefix(index) + "mlp.gate.e_score_correction_bias", shape.experts);
}

}  // namespace expertflow
