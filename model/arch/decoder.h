// What the supported families have in common: a decoder of layers that each add attention and then
// an MLP or experts to a residual stream, with RMS norms before both. A family's file reads its
// config into a DecoderConfig and declares its tensors; the settings and the tensors that are there
// decide what the forward pass (decoder.cpp and the blocks) does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "device/ops.h"
#include "model/arch/architecture.h"
#include "model/arch/rope.h"
#include "model/arch/weight_table.h"
#include "model/checkpoint/quantisation.h"

namespace expertflow {

// Sizes of multi-head latent attention; kv_rank == 0: a family without it.
struct LatentShape {
  int32_t q_rank = 0;    // 0: queries are projected at once
  int32_t kv_rank = 0;   // of the latent vector that the KV cache holds
  int32_t nope_dim = 0;  // of a query and key head, without rotation
  int32_t rope_dim = 0;  // of a query head, and of the one rotated key
  int32_t value_dim = 0;
};

struct DecoderConfig {
  ModelShape shape;
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;

  RopeConfig rope;
  int32_t rotary_dim = 0;
  RopePairs rope_pairs = RopePairs::kHalves;
  float attention_scale = 0;
  float embedding_factor = 1;  // of the embedding
  float residual_factor = 1;   // of what attention, MLP and experts add to the residual stream
  float logit_factor = 1;
  float qkv_clip = 0;  // queries, keys and values are clamped to +- this; 0: not
  LatentShape latent;

  RouterShape router;  // without a layer's correction
  Activation expert_activation;
  Quantisation quantisation;  // of the checkpoint
};

// Grouped-query attention. Absent parts have no data.
struct GroupedAttentionWeights {
  Projection q, k, v, o;
  WeightVector q_norm, k_norm;  // of a head's size: per head; else over the whole projection
  WeightVector sinks;           // [heads]
  int32_t window = 0;           // 0: all positions
};

struct LatentAttentionWeights {
  Projection q_a;          // [q_rank, hidden]
  WeightVector q_a_norm;   // [q_rank]
  WeightMatrix q;          // [heads * (nope + rope), q_rank or hidden]
  Projection kv_a;         // [kv_rank + rope, hidden]
  WeightVector kv_a_norm;  // [kv_rank]
  WeightMatrix kv_b;       // [heads * (nope + value), kv_rank]
  Projection o;            // [hidden, heads * value]
};

struct DecoderLayer {
  WeightVector input_norm;
  WeightVector post_norm;  // before the MLP
  GroupedAttentionWeights attention;
  LatentAttentionWeights latent;
  bool is_moe = false;
  MlpWeights mlp;            // of a dense layer, or the shared experts (absent: none)
  Projection router;         // [experts, hidden]
  WeightVector correction;   // [experts] or absent
  WeightMatrix shared_gate;  // [1, hidden] or absent: the shared expert is not gated
};

// A family's tensor table. `layer` is called to plan and to bind.
struct DecoderTables {
  std::function<DecoderLayer(int32_t layer, WeightTable* table)> layer;
  std::function<ExpertSpec(int32_t layer, int32_t expert)> expert;
  // Of tensors that may be there and are not needed.
  std::vector<std::string> ignored_prefixes;
};

Result<std::unique_ptr<Architecture>> MakeDecoder(DecoderConfig config, DecoderTables tables);

// --- what the families' tables are made of -----------------------------------------------------

// "model.layers.<layer>."
std::string LayerPrefix(int32_t layer);
bool IsMoeLayer(const ModelShape& shape, int32_t layer);

// Both norms under their usual names.
void DeclareNorms(const ModelShape& shape, const std::string& prefix, WeightTable* table,
                  DecoderLayer* layer);
// "<prefix>q_proj", k_proj, v_proj and o_proj.
void DeclareProjections(const ModelShape& shape, const std::string& prefix, bool qkv_bias,
                        bool o_bias, WeightTable* table, GroupedAttentionWeights* attention);
// "<prefix><expert>.gate_proj.weight", up_proj and down_proj, or other names for them.
ExpertSpec DeclareExpert(const ModelShape& shape, int32_t layer, int32_t expert,
                         const std::string& prefix, const char* gate = "gate_proj",
                         const char* up = "up_proj", const char* down = "down_proj");

// The tables of a family whose layers `layer` declares, and whose experts have the usual names
// "<layer prefix>mlp.experts.<expert>.gate_proj.weight" and so on.
template <typename Config>
DecoderTables UsualTables(const Config& config,
                          DecoderLayer (*layer)(const Config&, int32_t, WeightTable*)) {
  DecoderTables tables;
  tables.layer = [config, layer](int32_t index, WeightTable* table) {
    return layer(config, index, table);
  };
  tables.expert = [shape = config.decoder.shape](int32_t index, int32_t expert) {
    return DeclareExpert(shape, index, expert, LayerPrefix(index) + "mlp.experts.");
  };
  return tables;
}

}  // namespace expertflow
