#include "model/arch/blocks.h"

namespace expertflow {
namespace {

class GroupedAttention final : public AttentionBlock {
 public:
  GroupedAttention(const DecoderConfig& config, Ops& ops, const Workspace& workspace,
                   const float* cos_sin)
      : config_(config),
        ops_(ops),
        q_(workspace.Floats("q")),
        k_(workspace.Floats("k")),
        v_(workspace.Floats("v")),
        attention_(workspace.Floats("attention")),
        cos_sin_(cos_sin) {}

  void Run(const DecoderLayer& layer, const ForwardBatch& batch, const KvLayer& kv, const float* x,
           float* out) override {
    const ModelShape& shape = config_.shape;
    const GroupedAttentionWeights& weights = layer.attention;
    const auto m = static_cast<int32_t>(batch.tokens.size());
    const LinearJob projections[] = {{weights.q.weight, weights.q.bias, x, q_},
                                     {weights.k.weight, weights.k.bias, x, k_},
                                     {weights.v.weight, weights.v.bias, x, v_}};
    ops_.Linear(projections, m);
    Norm(weights.q_norm, m, shape.heads, q_);
    Norm(weights.k_norm, m, shape.kv_heads, k_);
    Clip(m, shape.heads, q_);
    Clip(m, shape.kv_heads, k_);
    Clip(m, shape.kv_heads, v_);
    ops_.Rope(q_, shape.heads, shape.head_dim, config_.rotary_dim, config_.rope_pairs, batch.rows,
              cos_sin_);
    ops_.Rope(k_, shape.kv_heads, shape.head_dim, config_.rotary_dim, config_.rope_pairs,
              batch.rows, cos_sin_);
    ops_.StoreKv(kv, k_, v_, batch.rows);
    ops_.Attention({shape.heads, config_.attention_scale, weights.window, weights.sinks}, kv, q_,
                   batch.rows, attention_);
    const LinearJob output[] = {{weights.o.weight, weights.o.bias, attention_, out}};
    ops_.Linear(output, m);
  }

 private:
  void Norm(const WeightVector& weight, int32_t m, int32_t heads, float* x) {
    if (weight.data == nullptr) return;
    const int32_t parts = heads * config_.shape.head_dim / weight.size;
    ops_.RmsNorm(x, weight, config_.norm_eps, m * parts, x);
  }
  void Clip(int32_t m, int32_t heads, float* x) {
    if (config_.qkv_clip == 0) return;
    ops_.Clamp(x, config_.qkv_clip, int64_t{m} * heads * config_.shape.head_dim);
  }

  const DecoderConfig& config_;
  Ops& ops_;
  float* const q_;          // [m, heads, head_dim]
  float* const k_;          // [m, kv_heads, head_dim]
  float* const v_;          // [m, kv_heads, head_dim]
  float* const attention_;  // [m, heads, head_dim]
  const float* const cos_sin_;
};

}  // namespace

void PlanGroupedAttention(const DecoderConfig& config, int64_t rows, Workspace* plan) {
  const ModelShape& shape = config.shape;
  plan->Add("q", rows * shape.heads * shape.head_dim);
  plan->Add("k", rows * shape.kv_heads * shape.head_dim);
  plan->Add("v", rows * shape.kv_heads * shape.head_dim);
  plan->Add("attention", rows * shape.heads * shape.head_dim);
}

std::unique_ptr<AttentionBlock> MakeGroupedAttention(const DecoderConfig& config, Ops& ops,
                                                     const Workspace& workspace,
                                                     const float* cos_sin) {
  return std::make_unique<GroupedAttention>(config, ops, workspace, cos_sin);
}

}  // namespace expertflow
