// The blocks of a decoder's forward pass (decoder.cpp): each plans its device buffers, takes them
// when they are allocated, and adds its work to the compute stream. One thread, as the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "device/ops.h"
#include "model/arch/decoder.h"
#include "model/arch/model.h"
#include "model/arch/workspace.h"

namespace expertflow {

class AttentionBlock {
 public:
  virtual ~AttentionBlock() = default;
  // out[m, hidden] = attention over x[m, hidden], normalised. Keys and values go to `kv`.
  virtual void Run(const DecoderLayer& layer, const ForwardBatch& batch, const KvLayer& kv,
                   const float* x, float* out) = 0;
};

// Grouped-query attention, with biases, norms of queries and keys, clipping, partial rotation,
// windows and sinks where the layer has them.
void PlanGroupedAttention(const DecoderConfig& config, int64_t rows, Workspace* plan);
std::unique_ptr<AttentionBlock> MakeGroupedAttention(const DecoderConfig& config, Ops& ops,
                                                     const Workspace& workspace,
                                                     const float* cos_sin);

// Multi-head latent attention. The KV cache holds the latent vector and the rotated key of a token;
// the projections of keys and values are absorbed into queries and outputs, for prompts as for
// decode, so that both give the same bits.
void PlanLatentAttention(const DecoderConfig& config, int64_t rows, Workspace* plan);
std::unique_ptr<AttentionBlock> MakeLatentAttention(const DecoderConfig& config, Ops& ops,
                                                    const Workspace& workspace,
                                                    const float* cos_sin);

// Routing, the executor's experts, shared experts, and their sum.
class MoeBlock {
 public:
  // REQUIRES: all outlive the block
  MoeBlock(const DecoderConfig& config, const ModelLimits& limits, Device& device,
           const std::vector<DecoderLayer>& layers);
  static void Plan(const DecoderConfig& config, const ModelLimits& limits, Workspace* plan);
  Status Take(const Workspace& workspace);

  // residual += experts of x. x is residual normalised for this layer; block_out is scratch
  // [m, hidden].
  Status Run(int32_t index, const ForwardBatch& batch, const float* x, float* block_out,
             float* residual, MoeExecutor& experts, ForwardSink& sink);

 private:
  std::span<const PreGate> ComputePreGate(int32_t index, int32_t m, int32_t lookahead,
                                          const float* residual);
  Status CopyStates(const float* residual, int32_t m);

  const DecoderConfig& config_;
  const ModelLimits limits_;
  Device& device_;
  Ops& ops_;
  const std::vector<DecoderLayer>& layers_;
  EventHandle event_;

  float* router_ = nullptr;      // [m, experts]
  float* gate_ = nullptr;        // [m, 1]
  int32_t* ids_ = nullptr;       // [m, top_k]
  float* weights_ = nullptr;     // [m, top_k]
  float* expert_out_ = nullptr;  // [m * top_k, hidden]
  float* pre_x_ = nullptr;       // [m, hidden]
  float* pre_logits_ = nullptr;  // [lookahead, m, experts]

  // Host copies.
  std::vector<int32_t> host_ids_;
  std::vector<float> host_weights_;
  std::vector<float> host_logits_;    // for a sink that wants states
  std::vector<float> host_residual_;  // likewise
  std::vector<PreGate> pre_gate_;
};

}  // namespace expertflow
