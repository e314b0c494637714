#include "model/arch/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "device/device.h"
#include "model/arch/blocks.h"
#include "model/arch/model.h"
#include "model/arch/workspace.h"

namespace expertflow {
namespace {

// Rows whose logits are computed together: bounds the buffer for large vocabularies.
constexpr int32_t kLogitRows = 16;

// The tensors outside the layers, which all families name alike.
struct DecoderEnds {
  WeightMatrix embedding;
  WeightVector final_norm;
  WeightMatrix lm_head;
};

class DecoderModel final : public Model {
 public:
  DecoderModel(const DecoderConfig& config, const ModelLimits& limits, Device& device)
      : config_(config),
        limits_(limits),
        device_(device),
        ops_(device.ops()),
        moe_(config_, limits_, device, layers_) {}

  static void PlanWorkspace(const DecoderConfig& config, const ModelLimits& limits,
                            Workspace* plan);
  Status Bind(const DecoderTables& tables, const WeightSource& weights);

  Status Forward(const ForwardBatch& batch, MoeExecutor& experts, ForwardSink& sink) override;

 private:
  Status ComputeLogits(const ForwardBatch& batch, ForwardSink& sink);
  void AddToResidual(int64_t elements);

  const DecoderConfig config_;
  const ModelLimits limits_;
  Device& device_;
  Ops& ops_;
  DecoderEnds ends_;
  std::vector<DecoderLayer> layers_;

  Workspace workspace_;
  MoeBlock moe_;
  std::unique_ptr<AttentionBlock> attention_;
  // Device buffers; shapes with m = rows_max.
  float* residual_ = nullptr;   // [m, hidden]
  float* x_ = nullptr;          // [m, hidden], normalised
  float* block_out_ = nullptr;  // [m, hidden]
  float* logits_x_ = nullptr;   // [kLogitRows, hidden]
  float* logits_ = nullptr;     // [kLogitRows, vocab]
  std::vector<float> host_logits_;
};

DecoderEnds DeclareEnds(const DecoderConfig& config, const DecoderTables& tables,
                        WeightTable* table, std::vector<DecoderLayer>* layers) {
  const ModelShape& shape = config.shape;
  DecoderEnds ends;
  ends.embedding = table->Matrix("model.embed_tokens.weight", shape.vocab, shape.hidden);
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    layers->push_back(tables.layer(layer, table));
    layers->back().is_moe = IsMoeLayer(shape, layer);
  }
  ends.final_norm = table->Vector("model.norm.weight", shape.hidden);
  ends.lm_head = config.tied_embeddings
                     ? ends.embedding
                     : table->Matrix("lm_head.weight", shape.vocab, shape.hidden);
  return ends;
}

WeightPlan MakeWeightPlan(const DecoderConfig& config, const DecoderTables& tables) {
  WeightPlan plan;
  plan.layers = config.shape.layers;
  plan.experts_per_layer = config.shape.experts;
  WeightTable table(&plan);
  std::vector<DecoderLayer> layers;
  DeclareEnds(config, tables, &table, &layers);
  for (const int32_t layer : config.shape.moe_layers) {
    for (int32_t expert = 0; expert < config.shape.experts; ++expert) {
      plan.experts.push_back(tables.expert(layer, expert));
    }
  }
  plan.ignored_prefixes = tables.ignored_prefixes;
  plan.quantisation = config.quantisation;
  plan.head_dim = config.shape.head_dim;
  plan.nope_dim = config.latent.nope_dim;
  if (config.tied_embeddings) plan.ignored_prefixes.push_back("lm_head.weight");
  return plan;
}

void DecoderModel::PlanWorkspace(const DecoderConfig& config, const ModelLimits& limits,
                                 Workspace* plan) {
  const ModelShape& shape = config.shape;
  const int64_t m = limits.rows_max;
  plan->Add("residual", m * shape.hidden);
  plan->Add("x", m * shape.hidden);
  plan->Add("block_out", m * shape.hidden);
  if (config.latent.kv_rank > 0) {
    PlanLatentAttention(config, m, plan);
  } else {
    PlanGroupedAttention(config, m, plan);
  }
  MoeBlock::Plan(config, limits, plan);
  plan->Add("logits_x", int64_t{kLogitRows} * shape.hidden);
  plan->Add("logits", int64_t{kLogitRows} * shape.vocab);
  plan->Add("cos_sin", int64_t{limits.positions_max} * config.rotary_dim);
}

Status DecoderModel::Bind(const DecoderTables& tables, const WeightSource& weights) {
  WeightTable table(weights);
  ends_ = DeclareEnds(config_, tables, &table, &layers_);
  RETURN_IF_ERROR(table.status());

  PlanWorkspace(config_, limits_, &workspace_);
  RETURN_IF_ERROR(workspace_.Allocate(device_));
  residual_ = workspace_.Floats("residual");
  x_ = workspace_.Floats("x");
  block_out_ = workspace_.Floats("block_out");
  logits_x_ = workspace_.Floats("logits_x");
  logits_ = workspace_.Floats("logits");
  float* cos_sin = workspace_.Floats("cos_sin");
  RETURN_IF_ERROR(moe_.Take(workspace_));
  const auto make = config_.latent.kv_rank > 0 ? MakeLatentAttention : MakeGroupedAttention;
  attention_ = make(config_, ops_, workspace_, cos_sin);

  const auto values = RopeTable(config_.rope, config_.rotary_dim, limits_.positions_max);
  RETURN_IF_ERROR(device_.CopyToDevice(StreamKind::kCompute, cos_sin, values.data(),
                                       values.size() * sizeof(float)));
  RETURN_IF_ERROR(device_.SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(60'000)));
  host_logits_.resize(static_cast<size_t>(kLogitRows) * config_.shape.vocab);
  return OkStatus();
}

Status DecoderModel::ComputeLogits(const ForwardBatch& batch, ForwardSink& sink) {
  const ModelShape& shape = config_.shape;
  const auto& rows = batch.logit_rows;
  for (size_t begin = 0; begin < rows.size(); begin += kLogitRows) {
    const auto count = static_cast<int32_t>(std::min<size_t>(kLogitRows, rows.size() - begin));
    for (int32_t i = 0; i < count; ++i) {
      ops_.RmsNorm(residual_ + int64_t{rows[begin + i]} * shape.hidden, ends_.final_norm,
                   config_.norm_eps, 1, logits_x_ + int64_t{i} * shape.hidden);
    }
    const LinearJob job[] = {{ends_.lm_head, {}, logits_x_, logits_}};
    ops_.Linear(job, count);
    if (config_.logit_factor != 1) {
      ops_.Scale(logits_, config_.logit_factor, int64_t{count} * shape.vocab);
    }
    RETURN_IF_ERROR(device_.CopyToHost(StreamKind::kCompute, host_logits_.data(), logits_,
                                       sizeof(float) * count * shape.vocab));
    RETURN_IF_ERROR(device_.SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(60'000)));
    for (int32_t i = 0; i < count; ++i) {
      RETURN_IF_ERROR(sink.OnLogits(rows[begin + i],
                                    {host_logits_.data() + static_cast<size_t>(i) * shape.vocab,
                                     static_cast<size_t>(shape.vocab)}));
    }
  }
  return OkStatus();
}

// What a block has left in block_out_.
void DecoderModel::AddToResidual(int64_t elements) {
  if (config_.residual_factor != 1) ops_.Scale(block_out_, config_.residual_factor, elements);
  ops_.Add(residual_, block_out_, elements);
}

Status DecoderModel::Forward(const ForwardBatch& batch, MoeExecutor& experts, ForwardSink& sink) {
  const ModelShape& shape = config_.shape;
  const auto m = static_cast<int32_t>(batch.tokens.size());
  CHECK(m >= 1 && m <= limits_.rows_max);
  CHECK(batch.rows.size() == batch.tokens.size() && batch.prefill.size() == batch.tokens.size());
  CHECK(batch.kv.size() == layers_.size());
  const int64_t elements = int64_t{m} * shape.hidden;
  ops_.Embed(ends_.embedding, batch.tokens, residual_);
  if (config_.embedding_factor != 1) ops_.Scale(residual_, config_.embedding_factor, elements);
  for (int32_t index = 0; index < shape.layers; ++index) {
    const DecoderLayer& layer = layers_[index];
    ops_.RmsNorm(residual_, layer.input_norm, config_.norm_eps, m, x_);
    attention_->Run(layer, batch, batch.kv[index], x_, block_out_);
    AddToResidual(elements);
    ops_.RmsNorm(residual_, layer.post_norm, config_.norm_eps, m, x_);
    if (layer.is_moe) {
      RETURN_IF_ERROR(moe_.Run(index, batch, x_, block_out_, residual_, experts, sink));
    } else {
      ops_.Mlp(layer.mlp, x_, m, block_out_);
      AddToResidual(elements);
    }
  }
  return ComputeLogits(batch, sink);
}

class DecoderArchitecture final : public Architecture {
 public:
  DecoderArchitecture(DecoderConfig config, DecoderTables tables)
      : config_(std::move(config)),
        tables_(std::move(tables)),
        plan_(MakeWeightPlan(config_, tables_)) {}

  const ModelShape& shape() const override { return config_.shape; }
  const WeightPlan& weights() const override { return plan_; }

  uint64_t WorkspaceBytes(const ModelLimits& limits) const override {
    Workspace plan;
    DecoderModel::PlanWorkspace(config_, limits, &plan);
    return plan.bytes();
  }

  Result<std::unique_ptr<Model>> Build(Device& device, const WeightSource& weights,
                                       const ModelLimits& limits) const override {
    auto model = std::make_unique<DecoderModel>(config_, limits, device);
    RETURN_IF_ERROR(model->Bind(tables_, weights));
    return std::unique_ptr<Model>(std::move(model));
  }

 private:
  const DecoderConfig config_;
  const DecoderTables tables_;
  const WeightPlan plan_;
};

}  // namespace

Result<std::unique_ptr<Architecture>> MakeDecoder(DecoderConfig config, DecoderTables tables) {
  config.router.experts = config.shape.experts;
  config.router.top_k = config.shape.top_k;
  return std::unique_ptr<Architecture>(
      std::make_unique<DecoderArchitecture>(std::move(config), std::move(tables)));
}

std::string LayerPrefix(int32_t layer) {
  return fmt::format("model.layers.{}.", layer);
}

bool IsMoeLayer(const ModelShape& shape, int32_t layer) {
  return std::binary_search(shape.moe_layers.begin(), shape.moe_layers.end(), layer);
}

void DeclareNorms(const ModelShape& shape, const std::string& prefix, WeightTable* table,
                  DecoderLayer* layer) {
  layer->input_norm = table->Vector(prefix + "input_layernorm.weight", shape.hidden);
  layer->post_norm = table->Vector(prefix + "post_attention_layernorm.weight", shape.hidden);
}

void DeclareProjections(const ModelShape& shape, const std::string& prefix, bool qkv_bias,
                        bool o_bias, WeightTable* table, GroupedAttentionWeights* attention) {
  const int64_t q_size = int64_t{shape.heads} * shape.head_dim;
  const int64_t kv_size = int64_t{shape.kv_heads} * shape.head_dim;
  attention->q = table->Linear(prefix + "q_proj", q_size, shape.hidden, qkv_bias);
  attention->k = table->Linear(prefix + "k_proj", kv_size, shape.hidden, qkv_bias);
  attention->v = table->Linear(prefix + "v_proj", kv_size, shape.hidden, qkv_bias);
  attention->o = table->Linear(prefix + "o_proj", shape.hidden, q_size, o_bias);
}

ExpertSpec DeclareExpert(const ModelShape& shape, int32_t layer, int32_t expert,
                         const std::string& prefix, const char* gate, const char* up,
                         const char* down) {
  const int64_t wide = shape.expert_intermediate;
  const int64_t hidden = shape.hidden;
  ExpertSpec spec;
  spec.key = {LayerId(layer), ExpertId(expert)};
  const std::string name = fmt::format("{}{}.", prefix, expert);
  spec.gate = {name + gate + ".weight", {wide, hidden}, {}};
  spec.up = {name + up + ".weight", {wide, hidden}, {}};
  spec.down = {name + down + ".weight", {hidden, wide}, {}};
  return spec;
}

}  // namespace expertflow
