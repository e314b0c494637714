#include <algorithm>

#include "common/clock.h"
#include "model/arch/blocks.h"

namespace expertflow {

void MoeBlock::Plan(const DecoderConfig& config, const ModelLimits& limits, Workspace* plan) {
  const ModelShape& shape = config.shape;
  const int64_t m = limits.rows_max;
  plan->Add("router", m * shape.experts);
  plan->Add("gate", m);
  plan->Add("ids", m * shape.top_k);
  plan->Add("weights", m * shape.top_k);
  plan->Add("expert_out", m * shape.top_k * shape.hidden);
  plan->Add("pre_x", limits.lookahead_max > 0 ? m * shape.hidden : 0);
  plan->Add("pre_logits", limits.lookahead_max * m * shape.experts);
}

MoeBlock::MoeBlock(const DecoderConfig& config, const ModelLimits& limits, Device& device,
                   const std::vector<DecoderLayer>& layers)
    : config_(config), limits_(limits), device_(device), ops_(device.ops()), layers_(layers) {}

Status MoeBlock::Take(const Workspace& workspace) {
  router_ = workspace.Floats("router");
  gate_ = workspace.Floats("gate");
  ids_ = workspace.Ints("ids");
  weights_ = workspace.Floats("weights");
  expert_out_ = workspace.Floats("expert_out");
  pre_x_ = workspace.Floats("pre_x");
  pre_logits_ = workspace.Floats("pre_logits");
  host_ids_.resize(static_cast<size_t>(limits_.rows_max) * config_.shape.top_k);
  host_weights_.resize(host_ids_.size());
  pre_gate_.reserve(limits_.lookahead_max);
  ASSIGN_OR_RETURN(event_, device_.CreateEvent());
  return OkStatus();
}

// Router logits of the next MoE layers from this layer's residual stream, each normalised with the
// target layer's own norm (PREDICTION 2).
std::span<const PreGate> MoeBlock::ComputePreGate(int32_t index, int32_t m, int32_t lookahead,
                                                  const float* residual) {
  pre_gate_.clear();
  const int32_t wanted = std::min(lookahead, limits_.lookahead_max);
  for (int32_t target = index + 1; target < config_.shape.layers; ++target) {
    if (static_cast<int32_t>(pre_gate_.size()) >= wanted || target - index > wanted) break;
    const DecoderLayer& layer = layers_[target];
    if (!layer.is_moe) continue;
    float* logits = pre_logits_ + static_cast<int64_t>(pre_gate_.size()) * limits_.rows_max *
                                      config_.shape.experts;
    ops_.RmsNorm(residual, layer.post_norm, config_.norm_eps, m, pre_x_);
    const LinearJob job[] = {{layer.router.weight, layer.router.bias, pre_x_, logits}};
    ops_.Linear(job, m);
    pre_gate_.push_back({LayerId(target), logits});
  }
  return pre_gate_;
}

Status MoeBlock::Run(int32_t index, const ForwardBatch& batch, const float* x, float* block_out,
                     float* residual, MoeExecutor& experts, ForwardSink& sink) {
  const ModelShape& shape = config_.shape;
  const DecoderLayer& layer = layers_[index];
  const auto m = static_cast<int32_t>(batch.tokens.size());
  const bool gated = layer.shared_gate.data != nullptr;
  const LinearJob jobs[] = {{layer.router.weight, layer.router.bias, x, router_},
                            {layer.shared_gate, {}, x, gate_}};
  ops_.Linear(std::span(jobs).first(gated ? 2 : 1), m);
  RouterShape router = config_.router;
  router.correction = layer.correction;
  ops_.RouteTopK(router_, m, router, ids_, weights_);
  const size_t choices = static_cast<size_t>(m) * shape.top_k;
  RETURN_IF_ERROR(
      device_.CopyToHost(StreamKind::kCompute, host_ids_.data(), ids_, choices * sizeof(int32_t)));
  RETURN_IF_ERROR(device_.CopyToHost(StreamKind::kCompute, host_weights_.data(), weights_,
                                     choices * sizeof(float)));
  RETURN_IF_ERROR(device_.Record(event_, StreamKind::kCompute));
  const int32_t lookahead = experts.LookaheadLayers();
  const int64_t pre_gate_begin_ns = lookahead > 0 ? NowNs() : 0;
  const auto pre_gate = ComputePreGate(index, m, lookahead, residual);
  const int64_t pre_gate_ns = lookahead > 0 ? NowNs() - pre_gate_begin_ns : 0;
  RETURN_IF_ERROR(device_.Synchronize(event_, Deadline::AfterMs(60'000)));
  sink.OnRoutes(LayerId(index), host_ids_.data(), host_weights_.data());
  const bool states = sink.WantsStates();
  if (states) {
    RETURN_IF_ERROR(CopyStates(residual, m));
    sink.OnRouterState(LayerId(index), host_logits_.data(), host_residual_.data());
  }

  MoeLayerCall call;
  call.layer = LayerId(index);
  call.m = m;
  call.top_k = shape.top_k;
  call.experts = shape.experts;
  call.hidden = shape.hidden;
  call.activation = config_.expert_activation;
  call.ids = host_ids_.data();
  call.weights = host_weights_.data();
  call.prefill = batch.prefill;
  call.pre_gate = pre_gate;
  call.pre_gate_ns = pre_gate_ns;
  call.tokens = batch.tokens;
  call.rows = batch.rows;
  call.sequences = batch.sequences;
  call.residual = residual;
  call.x = x;
  call.out = expert_out_;
  RETURN_IF_ERROR(experts.RunExperts(call));
  const bool shared = layer.mlp.gate.data != nullptr;
  if (shared) ops_.Mlp(layer.mlp, x, m, block_out);
  if (const float factor = config_.residual_factor; factor != 1) {
    // The host has the weights already: what it sees are the router's own.
    ops_.Scale(weights_, factor, static_cast<int64_t>(choices));
    if (shared) ops_.Scale(block_out, factor, int64_t{m} * shape.hidden);
  }
  ops_.CombineExperts(expert_out_, weights_, m, shape.top_k, shape.hidden,
                      shared ? block_out : nullptr, gated ? gate_ : nullptr, residual);
  if (states) {
    RETURN_IF_ERROR(CopyStates(residual, m));
    sink.OnExpertResidual(LayerId(index), host_residual_.data());
  }
  return OkStatus();
}

// The router's logits and the residual stream as they are now.
Status MoeBlock::CopyStates(const float* residual, int32_t m) {
  host_logits_.resize(static_cast<size_t>(m) * config_.shape.experts);
  host_residual_.resize(static_cast<size_t>(m) * config_.shape.hidden);
  RETURN_IF_ERROR(device_.CopyToHost(StreamKind::kCompute, host_logits_.data(), router_,
                                     host_logits_.size() * sizeof(float)));
  RETURN_IF_ERROR(device_.CopyToHost(StreamKind::kCompute, host_residual_.data(), residual,
                                     host_residual_.size() * sizeof(float)));
  return device_.SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(60'000));
}

}  // namespace expertflow
