#include "model/arch/qwen2_moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/check.h"
#include "device/device.h"
#include "model/arch/config_keys.h"
#include "model/arch/model.h"
#include "model/arch/rope.h"
#include "model/arch/workspace.h"

namespace expertflow {
namespace {

// --- config ------------------------------------------------------------------------------------

struct Config {
  ModelShape shape;
  int32_t dense_intermediate = 0;
  int32_t shared_intermediate = 0;
  bool normalise_top_k = false;
  bool tied_embeddings = false;
  bool qkv_bias = true;
  float norm_eps = 1e-6f;
  RopeConfig rope;
  std::vector<bool> is_moe;  // [layers]
};

// Sliding windows are accepted only where they cannot have an effect.
Status CheckSlidingWindow(const JsonConfig& json, const ModelShape& shape) {
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

Status ReadExperts(const JsonConfig& json, Config* config) {
  ModelShape& shape = config->shape;
  ASSIGN_OR_RETURN(shape.experts, json.Int("num_experts", 1, 4096));
  ASSIGN_OR_RETURN(shape.top_k, json.Int("num_experts_per_tok", 1, shape.experts));
  ASSIGN_OR_RETURN(shape.expert_intermediate, json.Int("moe_intermediate_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(config->shared_intermediate,
                   json.Int("shared_expert_intermediate_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(config->dense_intermediate, json.Int("intermediate_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(config->normalise_top_k, json.BoolOr("norm_topk_prob", false));
  ASSIGN_OR_RETURN(const int64_t step, json.IntOr("decoder_sparse_step", 1, 1 << 20, 1));
  ASSIGN_OR_RETURN(const auto dense, json.IntList("mlp_only_layers", 0, shape.layers - 1));
  config->is_moe.resize(shape.layers);
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const bool excluded = std::find(dense.begin(), dense.end(), layer) != dense.end();
    config->is_moe[layer] = !excluded && (layer + 1) % step == 0;
    if (config->is_moe[layer]) shape.moe_layers.push_back(layer);
  }
  const bool has_dense = shape.moe_layers.size() < config->is_moe.size();
  shape.intermediate_max = std::max(shape.moe_layers.empty() ? 0 : config->shared_intermediate,
                                    has_dense ? config->dense_intermediate : 0);
  return OkStatus();
}

Result<Config> ReadConfig(const JsonConfig& json) {
  RETURN_IF_ERROR(RefuseCommonUnsupported(json));
  Config config;
  ModelShape& shape = config.shape;
  shape.architecture = "Qwen2MoeForCausalLM";
  ASSIGN_OR_RETURN(shape.layers, json.Int("num_hidden_layers", 1, 1024));
  ASSIGN_OR_RETURN(shape.hidden, json.Int("hidden_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(shape.heads, json.Int("num_attention_heads", 1, 4096));
  ASSIGN_OR_RETURN(shape.kv_heads, json.IntOr("num_key_value_heads", 1, shape.heads, shape.heads));
  ASSIGN_OR_RETURN(shape.head_dim,
                   json.IntOr("head_dim", 1, 4096, std::max(1, shape.hidden / shape.heads)));
  ASSIGN_OR_RETURN(shape.vocab, json.Int("vocab_size", 1, 1 << 24));
  ASSIGN_OR_RETURN(shape.context, json.Int("max_position_embeddings", 1, 1 << 26));
  if (!json.Has("head_dim") && shape.hidden % shape.heads != 0) {
    return json.Error("num_attention_heads", fmt::format("{} heads do not divide hidden_size {}",
                                                         shape.heads, shape.hidden));
  }
  if (shape.heads % shape.kv_heads != 0) {
    return json.Error(
        "num_key_value_heads",
        fmt::format("{} key/value heads do not divide {} heads", shape.kv_heads, shape.heads));
  }
  if (shape.head_dim % 2 != 0) {
    return json.Error("head_dim",
                      fmt::format("{} is odd; rotary embedding needs pairs", shape.head_dim));
  }
  ASSIGN_OR_RETURN(const std::string activation, json.StringOr("hidden_act", "silu"));
  if (activation != "silu") {
    return json.Error("hidden_act", fmt::format("expected \"silu\", found \"{}\"", activation));
  }
  ASSIGN_OR_RETURN(const double eps, json.NumberOr("rms_norm_eps", 0, 1, 1e-6));
  config.norm_eps = static_cast<float>(eps);
  ASSIGN_OR_RETURN(config.tied_embeddings, json.BoolOr("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(config.qkv_bias, json.BoolOr("qkv_bias", true));
  ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(json, 10000.0));
  ASSIGN_OR_RETURN(const auto stop, json.IntList("eos_token_id", 0, shape.vocab - 1));
  shape.stop_tokens.assign(stop.begin(), stop.end());
  RETURN_IF_ERROR(ReadExperts(json, &config));
  RETURN_IF_ERROR(CheckSlidingWindow(json, shape));
  RETURN_IF_ERROR(RefuseUnknownKeys(json));
  shape.kv_bytes_per_token =
      uint64_t{2} * sizeof(float) * shape.layers * shape.kv_heads * shape.head_dim;
  return config;
}

// --- tensor table ------------------------------------------------------------------------------

std::string LayerPrefix(int32_t layer) {
  return fmt::format("model.layers.{}.", layer);
}

ExpertSpec ExpertTensors(const ModelShape& shape, int32_t layer, int32_t expert) {
  const std::string prefix = fmt::format("{}mlp.experts.{}.", LayerPrefix(layer), expert);
  const int64_t wide = shape.expert_intermediate;
  const int64_t hidden = shape.hidden;
  return {{LayerId(layer), ExpertId(expert)},
          {prefix + "gate_proj.weight", {wide, hidden}},
          {prefix + "up_proj.weight", {wide, hidden}},
          {prefix + "down_proj.weight", {hidden, wide}}};
}

WeightPlan MakeWeightPlan(const Config& config) {
  const ModelShape& shape = config.shape;
  const int64_t hidden = shape.hidden;
  const int64_t q_size = int64_t{shape.heads} * shape.head_dim;
  const int64_t kv_size = int64_t{shape.kv_heads} * shape.head_dim;
  WeightPlan plan;
  plan.layers = shape.layers;
  plan.experts_per_layer = shape.experts;
  const auto add = [&plan](std::string name, std::vector<int64_t> dims) {
    plan.dense.push_back({std::move(name), std::move(dims)});
  };
  const auto add_mlp = [&](const std::string& prefix, int64_t wide) {
    add(prefix + "gate_proj.weight", {wide, hidden});
    add(prefix + "up_proj.weight", {wide, hidden});
    add(prefix + "down_proj.weight", {hidden, wide});
  };

  add("model.embed_tokens.weight", {shape.vocab, hidden});
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    add(prefix + "input_layernorm.weight", {hidden});
    add(prefix + "post_attention_layernorm.weight", {hidden});
    const std::string attention = prefix + "self_attn.";
    for (const auto& [name, size] : {std::pair("q_proj", q_size), std::pair("k_proj", kv_size),
                                     std::pair("v_proj", kv_size)}) {
      add(attention + name + ".weight", {size, hidden});
      if (config.qkv_bias) add(attention + name + ".bias", {size});
    }
    add(attention + "o_proj.weight", {hidden, q_size});
    const std::string mlp = prefix + "mlp.";
    if (!config.is_moe[layer]) {
      add_mlp(mlp, config.dense_intermediate);
      continue;
    }
    add(mlp + "gate.weight", {shape.experts, hidden});
    add(mlp + "shared_expert_gate.weight", {1, hidden});
    add_mlp(mlp + "shared_expert.", config.shared_intermediate);
    for (int32_t expert = 0; expert < shape.experts; ++expert) {
      plan.experts.push_back(ExpertTensors(shape, layer, expert));
    }
  }
  add("model.norm.weight", {hidden});
  if (config.tied_embeddings) {
    plan.ignored_prefixes.push_back("lm_head.weight");
  } else {
    add("lm_head.weight", {shape.vocab, hidden});
  }
  return plan;
}

// --- weights -----------------------------------------------------------------------------------

// Collects the first error, so that binding a layer reads as a table.
class Binder {
 public:
  explicit Binder(const WeightSource& source) : source_(source) {}

  WeightMatrix Matrix(const std::string& name) {
    const WeightTensor tensor = Get(name, 2);
    if (!status_.ok()) return {};
    return {tensor.data, tensor.dtype, static_cast<int32_t>(tensor.shape[0]),
            static_cast<int32_t>(tensor.shape[1])};
  }
  WeightVector Vector(const std::string& name) {
    const WeightTensor tensor = Get(name, 1);
    if (!status_.ok()) return {};
    return {tensor.data, tensor.dtype, static_cast<int32_t>(tensor.shape[0])};
  }
  MlpWeights Mlp(const std::string& prefix) {
    return {Matrix(prefix + "gate_proj.weight"), Matrix(prefix + "up_proj.weight"),
            Matrix(prefix + "down_proj.weight")};
  }
  const Status& status() const { return status_; }

 private:
  WeightTensor Get(const std::string& name, size_t rank) {
    if (!status_.ok()) return {};
    auto tensor = source_.Dense(name);
    if (!tensor.ok()) {
      status_ = tensor.status();
      return {};
    }
    if (tensor->shape.size() != rank) {
      status_ = InvalidArgument(
          fmt::format("{}: expected {} dimensions, found {}", name, rank, tensor->shape.size()));
      return {};
    }
    return *std::move(tensor);
  }

  const WeightSource& source_;
  Status status_;
};

struct Layer {
  WeightVector input_norm;
  WeightVector post_norm;
  WeightMatrix q, k, v, o;
  WeightVector q_bias, k_bias, v_bias;
  bool is_moe = false;
  MlpWeights mlp;            // the dense MLP, or the shared expert
  WeightMatrix router;       // [experts, hidden]
  WeightMatrix shared_gate;  // [1, hidden]
};

Layer BindLayer(const Config& config, int32_t index, Binder* bind) {
  const std::string prefix = LayerPrefix(index);
  const std::string attention = prefix + "self_attn.";
  Layer layer;
  layer.input_norm = bind->Vector(prefix + "input_layernorm.weight");
  layer.post_norm = bind->Vector(prefix + "post_attention_layernorm.weight");
  layer.q = bind->Matrix(attention + "q_proj.weight");
  layer.k = bind->Matrix(attention + "k_proj.weight");
  layer.v = bind->Matrix(attention + "v_proj.weight");
  layer.o = bind->Matrix(attention + "o_proj.weight");
  if (config.qkv_bias) {
    layer.q_bias = bind->Vector(attention + "q_proj.bias");
    layer.k_bias = bind->Vector(attention + "k_proj.bias");
    layer.v_bias = bind->Vector(attention + "v_proj.bias");
  }
  layer.is_moe = config.is_moe[index];
  if (layer.is_moe) {
    layer.router = bind->Matrix(prefix + "mlp.gate.weight");
    layer.shared_gate = bind->Matrix(prefix + "mlp.shared_expert_gate.weight");
    layer.mlp = bind->Mlp(prefix + "mlp.shared_expert.");
  } else {
    layer.mlp = bind->Mlp(prefix + "mlp.");
  }
  return layer;
}

// --- forward -----------------------------------------------------------------------------------

// Rows whose logits are computed together: bounds the buffer for large vocabularies.
constexpr int32_t kLogitRows = 16;

class Qwen2Moe final : public Model {
 public:
  Qwen2Moe(const Config& config, const ModelLimits& limits, Device& device)
      : config_(config), limits_(limits), device_(device), ops_(device.ops()) {}

  static void PlanWorkspace(const Config& config, const ModelLimits& limits, Workspace* plan);
  Status Bind(const WeightSource& weights);

  Status Forward(const ForwardBatch& batch, MoeExecutor& experts, ForwardSink& sink) override;

 private:
  void Attend(const Layer& layer, const ForwardBatch& batch, const KvLayer& kv);
  Status MoeBlock(int32_t index, const ForwardBatch& batch, MoeExecutor& experts,
                  ForwardSink& sink);
  Status ComputeLogits(const ForwardBatch& batch, ForwardSink& sink);
  std::span<const PreGate> ComputePreGate(int32_t index, int32_t m, int32_t lookahead);

  const Config config_;
  const ModelLimits limits_;
  Device& device_;
  Ops& ops_;
  EventHandle event_;

  WeightMatrix embedding_;
  WeightMatrix lm_head_;
  WeightVector final_norm_;
  std::vector<Layer> layers_;

  Workspace workspace_;
  // Device buffers; shapes with m = rows_max.
  float* residual_ = nullptr;    // [m, hidden]
  float* x_ = nullptr;           // [m, hidden], normalised
  float* q_ = nullptr;           // [m, heads, head_dim]
  float* k_ = nullptr;           // [m, kv_heads, head_dim]
  float* v_ = nullptr;           // [m, kv_heads, head_dim]
  float* attention_ = nullptr;   // [m, heads, head_dim]
  float* block_out_ = nullptr;   // [m, hidden]
  float* router_ = nullptr;      // [m, experts]
  float* gate_ = nullptr;        // [m, 1]
  int32_t* ids_ = nullptr;       // [m, top_k]
  float* weights_ = nullptr;     // [m, top_k]
  float* expert_out_ = nullptr;  // [m * top_k, hidden]
  float* pre_x_ = nullptr;       // [m, hidden]
  float* pre_logits_ = nullptr;  // [lookahead, m, experts]
  float* logits_x_ = nullptr;    // [kLogitRows, hidden]
  float* logits_ = nullptr;      // [kLogitRows, vocab]
  float* cos_sin_ = nullptr;     // [positions, head_dim]

  // Host copies.
  std::vector<int32_t> host_ids_;
  std::vector<float> host_weights_;
  std::vector<float> host_logits_;
  std::vector<PreGate> pre_gate_;
};

void Qwen2Moe::PlanWorkspace(const Config& config, const ModelLimits& limits, Workspace* plan) {
  const ModelShape& shape = config.shape;
  const int64_t m = limits.rows_max;
  plan->Add("residual", m * shape.hidden);
  plan->Add("x", m * shape.hidden);
  plan->Add("q", m * shape.heads * shape.head_dim);
  plan->Add("k", m * shape.kv_heads * shape.head_dim);
  plan->Add("v", m * shape.kv_heads * shape.head_dim);
  plan->Add("attention", m * shape.heads * shape.head_dim);
  plan->Add("block_out", m * shape.hidden);
  plan->Add("router", m * shape.experts);
  plan->Add("gate", m);
  plan->Add("ids", m * shape.top_k);
  plan->Add("weights", m * shape.top_k);
  plan->Add("expert_out", m * shape.top_k * shape.hidden);
  plan->Add("pre_x", limits.lookahead_max > 0 ? m * shape.hidden : 0);
  plan->Add("pre_logits", limits.lookahead_max * m * shape.experts);
  plan->Add("logits_x", int64_t{kLogitRows} * shape.hidden);
  plan->Add("logits", int64_t{kLogitRows} * shape.vocab);
  plan->Add("cos_sin", int64_t{limits.positions_max} * shape.head_dim);
}

Status Qwen2Moe::Bind(const WeightSource& weights) {
  const ModelShape& shape = config_.shape;
  Binder bind(weights);
  embedding_ = bind.Matrix("model.embed_tokens.weight");
  final_norm_ = bind.Vector("model.norm.weight");
  lm_head_ = config_.tied_embeddings ? embedding_ : bind.Matrix("lm_head.weight");
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    layers_.push_back(BindLayer(config_, layer, &bind));
  }
  RETURN_IF_ERROR(bind.status());

  PlanWorkspace(config_, limits_, &workspace_);
  RETURN_IF_ERROR(workspace_.Allocate(device_));
  residual_ = workspace_.Floats("residual");
  x_ = workspace_.Floats("x");
  q_ = workspace_.Floats("q");
  k_ = workspace_.Floats("k");
  v_ = workspace_.Floats("v");
  attention_ = workspace_.Floats("attention");
  block_out_ = workspace_.Floats("block_out");
  router_ = workspace_.Floats("router");
  gate_ = workspace_.Floats("gate");
  ids_ = workspace_.Ints("ids");
  weights_ = workspace_.Floats("weights");
  expert_out_ = workspace_.Floats("expert_out");
  pre_x_ = workspace_.Floats("pre_x");
  pre_logits_ = workspace_.Floats("pre_logits");
  logits_x_ = workspace_.Floats("logits_x");
  logits_ = workspace_.Floats("logits");
  cos_sin_ = workspace_.Floats("cos_sin");

  ASSIGN_OR_RETURN(event_, device_.CreateEvent());
  const auto table = RopeTable(config_.rope, shape.head_dim, limits_.positions_max);
  RETURN_IF_ERROR(device_.CopyToDevice(StreamKind::kCompute, cos_sin_, table.data(),
                                       table.size() * sizeof(float)));
  RETURN_IF_ERROR(device_.SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(60'000)));
  host_ids_.resize(static_cast<size_t>(limits_.rows_max) * shape.top_k);
  host_weights_.resize(host_ids_.size());
  host_logits_.resize(static_cast<size_t>(kLogitRows) * shape.vocab);
  pre_gate_.reserve(limits_.lookahead_max);
  return OkStatus();
}

void Qwen2Moe::Attend(const Layer& layer, const ForwardBatch& batch, const KvLayer& kv) {
  const ModelShape& shape = config_.shape;
  const auto m = static_cast<int32_t>(batch.tokens.size());
  ops_.RmsNorm(residual_, layer.input_norm, config_.norm_eps, m, x_);
  const LinearJob projections[] = {{layer.q, layer.q_bias, x_, q_},
                                   {layer.k, layer.k_bias, x_, k_},
                                   {layer.v, layer.v_bias, x_, v_}};
  ops_.Linear(projections, m);
  ops_.Rope(q_, shape.heads, shape.head_dim, shape.head_dim, RopePairs::kHalves, batch.rows,
            cos_sin_);
  ops_.Rope(k_, shape.kv_heads, shape.head_dim, shape.head_dim, RopePairs::kHalves, batch.rows,
            cos_sin_);
  ops_.StoreKv(kv, k_, v_, batch.rows);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  ops_.Attention({shape.heads, scale, 0, {}}, kv, q_, batch.rows, attention_);
  const LinearJob output[] = {{layer.o, {}, attention_, block_out_}};
  ops_.Linear(output, m);
  ops_.Add(residual_, block_out_, int64_t{m} * shape.hidden);
}

// Router logits of the next MoE layers from this layer's residual stream, each normalised with the
// target layer's own norm (PREDICTION 2).
std::span<const PreGate> Qwen2Moe::ComputePreGate(int32_t index, int32_t m, int32_t lookahead) {
  pre_gate_.clear();
  const int32_t wanted = std::min(lookahead, limits_.lookahead_max);
  for (int32_t target = index + 1; target < config_.shape.layers; ++target) {
    if (static_cast<int32_t>(pre_gate_.size()) >= wanted || target - index > wanted) break;
    const Layer& layer = layers_[target];
    if (!layer.is_moe) continue;
    float* logits = pre_logits_ + static_cast<int64_t>(pre_gate_.size()) * limits_.rows_max *
                                      config_.shape.experts;
    ops_.RmsNorm(residual_, layer.post_norm, config_.norm_eps, m, pre_x_);
    const LinearJob job[] = {{layer.router, {}, pre_x_, logits}};
    ops_.Linear(job, m);
    pre_gate_.push_back({LayerId(target), logits});
  }
  return pre_gate_;
}

Status Qwen2Moe::MoeBlock(int32_t index, const ForwardBatch& batch, MoeExecutor& experts,
                          ForwardSink& sink) {
  const ModelShape& shape = config_.shape;
  const Layer& layer = layers_[index];
  const auto m = static_cast<int32_t>(batch.tokens.size());
  const LinearJob jobs[] = {{layer.router, {}, x_, router_}, {layer.shared_gate, {}, x_, gate_}};
  ops_.Linear(jobs, m);
  const RouterShape router{.experts = shape.experts,
                           .top_k = shape.top_k,
                           .normalise = config_.normalise_top_k};
  ops_.RouteTopK(router_, m, router, ids_, weights_);
  const size_t choices = static_cast<size_t>(m) * shape.top_k;
  RETURN_IF_ERROR(
      device_.CopyToHost(StreamKind::kCompute, host_ids_.data(), ids_, choices * sizeof(int32_t)));
  RETURN_IF_ERROR(device_.CopyToHost(StreamKind::kCompute, host_weights_.data(), weights_,
                                     choices * sizeof(float)));
  RETURN_IF_ERROR(device_.Record(event_, StreamKind::kCompute));
  const auto pre_gate = ComputePreGate(index, m, experts.LookaheadLayers());
  RETURN_IF_ERROR(device_.Synchronize(event_, Deadline::AfterMs(60'000)));
  sink.OnRoutes(LayerId(index), host_ids_.data(), host_weights_.data());

  MoeLayerCall call;
  call.layer = LayerId(index);
  call.m = m;
  call.top_k = shape.top_k;
  call.experts = shape.experts;
  call.hidden = shape.hidden;
  call.ids = host_ids_.data();
  call.weights = host_weights_.data();
  call.prefill = batch.prefill;
  call.pre_gate = pre_gate;
  call.x = x_;
  call.out = expert_out_;
  RETURN_IF_ERROR(experts.RunExperts(call));
  ops_.Mlp(layer.mlp, x_, m, block_out_);
  ops_.CombineExperts(expert_out_, weights_, m, shape.top_k, shape.hidden, block_out_, gate_,
                      residual_);
  return OkStatus();
}

Status Qwen2Moe::ComputeLogits(const ForwardBatch& batch, ForwardSink& sink) {
  const ModelShape& shape = config_.shape;
  const auto& rows = batch.logit_rows;
  for (size_t begin = 0; begin < rows.size(); begin += kLogitRows) {
    const auto count = static_cast<int32_t>(std::min<size_t>(kLogitRows, rows.size() - begin));
    for (int32_t i = 0; i < count; ++i) {
      ops_.RmsNorm(residual_ + int64_t{rows[begin + i]} * shape.hidden, final_norm_,
                   config_.norm_eps, 1, logits_x_ + int64_t{i} * shape.hidden);
    }
    const LinearJob job[] = {{lm_head_, {}, logits_x_, logits_}};
    ops_.Linear(job, count);
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

Status Qwen2Moe::Forward(const ForwardBatch& batch, MoeExecutor& experts, ForwardSink& sink) {
  const ModelShape& shape = config_.shape;
  const auto m = static_cast<int32_t>(batch.tokens.size());
  CHECK(m >= 1 && m <= limits_.rows_max);
  CHECK(batch.rows.size() == batch.tokens.size() && batch.prefill.size() == batch.tokens.size());
  CHECK(batch.kv.size() == layers_.size());
  ops_.Embed(embedding_, batch.tokens, residual_);
  for (int32_t index = 0; index < shape.layers; ++index) {
    const Layer& layer = layers_[index];
    Attend(layer, batch, batch.kv[index]);
    ops_.RmsNorm(residual_, layer.post_norm, config_.norm_eps, m, x_);
    if (layer.is_moe) {
      RETURN_IF_ERROR(MoeBlock(index, batch, experts, sink));
    } else {
      ops_.Mlp(layer.mlp, x_, m, block_out_);
      ops_.Add(residual_, block_out_, int64_t{m} * shape.hidden);
    }
  }
  return ComputeLogits(batch, sink);
}

// --- architecture ------------------------------------------------------------------------------

class Qwen2MoeArchitecture final : public Architecture {
 public:
  explicit Qwen2MoeArchitecture(Config config)
      : config_(std::move(config)), plan_(MakeWeightPlan(config_)) {}

  const ModelShape& shape() const override { return config_.shape; }
  const WeightPlan& weights() const override { return plan_; }

  uint64_t WorkspaceBytes(const ModelLimits& limits) const override {
    Workspace plan;
    Qwen2Moe::PlanWorkspace(config_, limits, &plan);
    return plan.bytes();
  }

  Result<std::unique_ptr<Model>> Build(Device& device, const WeightSource& weights,
                                       const ModelLimits& limits) const override {
    auto model = std::make_unique<Qwen2Moe>(config_, limits, device);
    RETURN_IF_ERROR(model->Bind(weights));
    return std::unique_ptr<Model>(std::move(model));
  }

 private:
  const Config config_;
  const WeightPlan plan_;
};

}  // namespace

Result<std::unique_ptr<Architecture>> MakeQwen2Moe(const JsonConfig& json) {
  ASSIGN_OR_RETURN(Config config, ReadConfig(json));
  return std::unique_ptr<Architecture>(std::make_unique<Qwen2MoeArchitecture>(std::move(config)));
}

}  // namespace expertflow
