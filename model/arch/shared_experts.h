// What DeepSeek and GLM share beside attention: dense layers first, routed and ungated shared
// experts after them, routing by corrected sigmoid scores ("noaux_tc"), and further layers at the
// end (multi-token prediction) that a model without speculation does not need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "model/arch/decoder.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {

struct SharedExpertConfig {
  int32_t dense_intermediate = 0;
  int32_t shared_intermediate = 0;  // of all shared experts together; 0: none
  std::vector<std::string> ignored_prefixes;
};

// n_routed_experts, n_shared_experts, first_k_dense_replace, num_nextn_predict_layers, ...
Result<SharedExpertConfig> ReadSharedExpertConfig(const JsonConfig& json, DecoderConfig* config);

// n_group and topk_group.
Status ReadExpertGroups(const JsonConfig& json, DecoderConfig* config);
// Sigmoid scores, groups, norm_topk_prob, routed_scaling_factor.
Status ReadNoauxRouter(const JsonConfig& json, DecoderConfig* config);

// The dense MLP, or router and shared experts.
void DeclareSharedExpertMlp(const ModelShape& shape, const SharedExpertConfig& config,
                            int32_t index, WeightTable* table, DecoderLayer* layer);
// The router's e_score_correction_bias.
void DeclareCorrection(const ModelShape& shape, int32_t index, WeightTable* table,
                       DecoderLayer* layer);

}  // namespace expertflow
