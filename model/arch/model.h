// A model bound to a device: the forward pass over a batch of tokens.
//
// One thread. A batch mixes prompt chunks and decode steps of any sequences; a row's result does
// not depend on the others (device/ops.h), so neither chunking nor batching changes an output.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"
#include "device/ops.h"
#include "model/arch/moe_executor.h"

namespace expertflow {

// What a model is built for.
struct ModelLimits {
  int32_t rows_max = 1;       // tokens of one Forward()
  int32_t positions_max = 1;  // a token's position is below this
  int32_t lookahead_max = 0;  // layers ahead for which pre-gate logits may be asked
};

// A dense weight in memory that the device's ops can read.
struct WeightTensor {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // An error names the tensor.
  virtual Result<WeightTensor> Dense(std::string_view name) const = 0;
};

struct ForwardBatch {
  std::span<const int32_t> tokens;      // [m], each in [0, vocab)
  std::span<const AttentionRow> rows;   // [m]; a sequence's rows ascend, one after the other
  std::span<const uint8_t> prefill;     // [m]: 1 for rows of a prompt
  std::span<const KvLayer> kv;          // [layers]
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // [m] which sequence a row belongs to, or empty: for policies, results do not depend on it.
  std::span<const SequenceId> sequences = {};
};

// Receives what a forward pass produces, in host memory that is valid during the call.
class ForwardSink {
 public:
  virtual ~ForwardSink() = default;
  // Once per entry of logit_rows, in order. logits[vocab]
  virtual Status OnLogits(int32_t row, std::span<const float> logits) = 0;
  // After each MoE layer's routing: ids and weights [m, top_k]
  virtual void OnRoutes(LayerId layer, const int32_t* ids, const float* weights) = 0;

  // The two below are called when this says so; asked once for each MoE layer. Costs two copies of
  // the residual stream to the host.
  virtual bool WantsStates() const { return false; }
  // With OnRoutes(): logits [m, experts] and the residual stream [m, hidden] before the router's
  // norm.
  virtual void OnRouterState(LayerId /*layer*/, const float* /*logits*/,
                             const float* /*residual*/) {}
  // After the layer's experts: the residual stream [m, hidden].
  virtual void OnExpertResidual(LayerId /*layer*/, const float* /*residual*/) {}
};

class Model {
 public:
  virtual ~Model() = default;
  // REQUIRES: 1 <= m <= rows_max; positions below positions_max; KV blocks for every row
  virtual Status Forward(const ForwardBatch& batch, MoeExecutor& experts, ForwardSink& sink) = 0;
};

}  // namespace expertflow
