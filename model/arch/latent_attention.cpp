#include <cstddef>

#include "common/check.h"
#include "model/arch/blocks.h"

namespace expertflow {
namespace {

WeightVector PartOf(const WeightVector& vector, int64_t begin, int32_t count) {
  if (vector.data == nullptr) return {};
  const auto* data = static_cast<const std::byte*>(vector.data);
  return {data + static_cast<uint64_t>(begin) * DTypeBytes(vector.dtype), vector.dtype, count};
}

// With c the latent vector of a position and r its rotated key, a head's key is (W_k c, r) and its
// value W_v c. So q . key = (W_k^T q_nope) . c + q_rope . r, and the output is W_v applied to the
// weighted sum of the c: a single key and value of (c, r) and c serves all heads.
class LatentAttention final : public AttentionBlock {
 public:
  LatentAttention(const DecoderConfig& config, Ops& ops, const Workspace& workspace,
                  const float* cos_sin)
      : config_(config),
        latent_(config.latent),
        ops_(ops),
        q_a_(workspace.Floats("q_a")),
        q_nope_(workspace.Floats("q_nope")),
        q_(workspace.Floats("q")),
        c_(workspace.Floats("latent")),
        k_rope_(workspace.Floats("k_rope")),
        mixed_(workspace.Floats("mixed")),
        values_(workspace.Floats("values")),
        cos_sin_(cos_sin) {}

  void Run(const DecoderLayer& layer, const ForwardBatch& batch, const KvLayer& kv, const float* x,
           float* out) override {
    const LatentAttentionWeights& weights = layer.latent;
    const auto m = static_cast<int32_t>(batch.tokens.size());
    const int32_t heads = config_.shape.heads;
    const int32_t key_dim = latent_.kv_rank + latent_.rope_dim;
    const float* q_in = x;
    jobs_.clear();
    jobs_.push_back({weights.kv_a.weight.Rows(0, latent_.kv_rank),
                     PartOf(weights.kv_a.bias, 0, latent_.kv_rank), x, c_});
    jobs_.push_back({weights.kv_a.weight.Rows(latent_.kv_rank, latent_.rope_dim),
                     PartOf(weights.kv_a.bias, latent_.kv_rank, latent_.rope_dim), x, k_rope_});
    if (latent_.q_rank > 0) {
      jobs_.push_back({weights.q_a.weight, weights.q_a.bias, x, q_a_});
      q_in = q_a_;
    }
    ops_.Linear(jobs_, m);
    ops_.RmsNorm(c_, weights.kv_a_norm, kLatentNormEps, m, c_);
    if (latent_.q_rank > 0) ops_.RmsNorm(q_a_, weights.q_a_norm, kLatentNormEps, m, q_a_);

    ProjectQueries(weights, q_in, m);
    ops_.Rope(q_ + latent_.kv_rank, heads, key_dim, latent_.rope_dim, config_.rope_pairs,
              batch.rows, cos_sin_);
    ops_.Rope(k_rope_, 1, latent_.rope_dim, latent_.rope_dim, config_.rope_pairs, batch.rows,
              cos_sin_);
    ops_.StoreKv(kv, k_rope_, c_, batch.rows);
    ops_.Attention({heads, config_.attention_scale, 0, {}}, kv, q_, batch.rows, mixed_);

    jobs_.clear();
    const int32_t head_rows = latent_.nope_dim + latent_.value_dim;
    for (int32_t h = 0; h < heads; ++h) {
      jobs_.push_back({weights.kv_b.Rows(h * head_rows + latent_.nope_dim, latent_.value_dim),
                       {},
                       mixed_ + int64_t{h} * latent_.kv_rank,
                       values_ + int64_t{h} * latent_.value_dim,
                       heads * latent_.kv_rank,
                       heads * latent_.value_dim});
    }
    ops_.Linear(jobs_, m);
    const LinearJob output[] = {{weights.o.weight, weights.o.bias, values_, out}};
    ops_.Linear(output, m);
  }

 private:
  // The published code builds these two norms without the config's eps.
  static constexpr float kLatentNormEps = 1e-6f;

  // q[m, heads, kv_rank + rope]: W_k^T q_nope, then q_rope as projected.
  void ProjectQueries(const LatentAttentionWeights& weights, const float* x, int32_t m) {
    const int32_t heads = config_.shape.heads;
    const int32_t key_dim = latent_.kv_rank + latent_.rope_dim;
    const int32_t head_rows = latent_.nope_dim + latent_.rope_dim;
    jobs_.clear();
    for (int32_t h = 0; h < heads; ++h) {
      const int32_t first = h * head_rows;
      jobs_.push_back({weights.q.Rows(first, latent_.nope_dim),
                       {},
                       x,
                       q_nope_ + int64_t{h} * latent_.nope_dim,
                       0,
                       heads * latent_.nope_dim});
      jobs_.push_back({weights.q.Rows(first + latent_.nope_dim, latent_.rope_dim),
                       {},
                       x,
                       q_ + int64_t{h} * key_dim + latent_.kv_rank,
                       0,
                       heads * key_dim});
    }
    ops_.Linear(jobs_, m);
    jobs_.clear();
    const int32_t kv_rows = latent_.nope_dim + latent_.value_dim;
    for (int32_t h = 0; h < heads; ++h) {
      jobs_.push_back({weights.kv_b.Rows(h * kv_rows, latent_.nope_dim),
                       {},
                       q_nope_ + int64_t{h} * latent_.nope_dim,
                       q_ + int64_t{h} * key_dim,
                       heads * latent_.nope_dim,
                       heads * key_dim});
    }
    ops_.LinearTransposed(jobs_, m);
  }

  const DecoderConfig& config_;
  const LatentShape& latent_;
  Ops& ops_;
  float* const q_a_;     // [m, q_rank]
  float* const q_nope_;  // [m, heads, nope]
  float* const q_;       // [m, heads, kv_rank + rope]
  float* const c_;       // [m, kv_rank]
  float* const k_rope_;  // [m, rope]
  float* const mixed_;   // [m, heads, kv_rank]
  float* const values_;  // [m, heads, value]
  const float* const cos_sin_;
  std::vector<LinearJob> jobs_;
};

}  // namespace

void PlanLatentAttention(const DecoderConfig& config, int64_t rows, Workspace* plan) {
  const LatentShape& latent = config.latent;
  const int64_t heads = config.shape.heads;
  plan->Add("q_a", rows * latent.q_rank);
  plan->Add("q_nope", rows * heads * latent.nope_dim);
  plan->Add("q", rows * heads * (latent.kv_rank + latent.rope_dim));
  plan->Add("latent", rows * latent.kv_rank);
  plan->Add("k_rope", rows * latent.rope_dim);
  plan->Add("mixed", rows * heads * latent.kv_rank);
  plan->Add("values", rows * heads * latent.value_dim);
}

std::unique_ptr<AttentionBlock> MakeLatentAttention(const DecoderConfig& config, Ops& ops,
                                                    const Workspace& workspace,
                                                    const float* cos_sin) {
  return std::make_unique<LatentAttention>(config, ops, workspace, cos_sin);
}

}  // namespace expertflow
