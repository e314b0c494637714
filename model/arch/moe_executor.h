// How a MoE layer gets its experts run: the seam between the forward pass (model/arch) and the
// worker that owns memory, cache and transfers. The forward pass routes; the executor finds each
// expert's weights (in place, in a cache slot, or through a streaming buffer), runs the resident
// ones first and the rest as they arrive. Rows of `out` are written once each, so arrival order
// cannot change a result.
#pragma once

#include <cstdint>
#include <span>

#include "common/ids.h"
#include "common/status.h"
#include "device/ops.h"

namespace expertflow {

// Router logits of a later layer, computed from this layer's residual stream (normalised with the
// later layer's own norm): what the prefetch planner predicts from.
struct PreGate {
  LayerId target;
  const float* logits = nullptr;  // [m, experts]
};

struct MoeLayerCall {
  LayerId layer;
  int32_t m = 0;  // rows (tokens)
  int32_t top_k = 0;
  int32_t experts = 0;  // of this layer
  int32_t hidden = 0;
  Activation activation;           // of every expert
  const int32_t* ids = nullptr;    // host [m, top_k], each in [0, experts); a row may repeat an id
  const float* weights = nullptr;  // host [m, top_k], as applied
  std::span<const uint8_t> prefill;  // [m]: 1 where the row is part of a prompt, 0 where it decodes
  std::span<const PreGate> pre_gate;  // nearest layer first; empty when not asked for
  int64_t pre_gate_ns = 0;            // what the host took for them
  // For policies; empty when not known.
  std::span<const int32_t> tokens = {};        // [m]
  std::span<const AttentionRow> rows = {};     // [m] their positions
  std::span<const SequenceId> sequences = {};  // [m]
  const float* residual = nullptr;             // device [m, hidden], before the router's norm
  const float* x = nullptr;                    // device [m, hidden], normalised
  float* out = nullptr;                        // device [m * top_k, hidden]: row t * top_k + s
};

class MoeExecutor {
 public:
  virtual ~MoeExecutor() = default;

  // How many layers ahead pre-gate logits are wanted now: 0 when prefetch is off.
  virtual int32_t LookaheadLayers() const = 0;

  // Runs all experts of a layer. On return the work is enqueued on the compute stream.
  virtual Status RunExperts(const MoeLayerCall& call) = 0;
};

}  // namespace expertflow
