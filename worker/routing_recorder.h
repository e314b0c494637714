// Records what the router chose in every step, and on demand what it chose from: the rows of a
// routing trace (common/trace/trace_format.h). `--record FILE` writes them to a file; training and
// judging of predictors take them in memory. Owned by whoever owns the engine; used by the engine's
// thread only. What cannot be written ends the recording, never the run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "common/trace/trace_sink.h"
#include "expert_store/store_view.h"
#include "model/arch/architecture.h"
#include "transport/messages.h"

namespace expertflow {

// `features`: with the router's logits and the hidden states before and after each MoE layer.
TraceShape RecordedShape(const StoreView& store, const ModelShape& model, bool features,
                         std::string config);

class RoutingRecorder {
 public:
  // Begins the trace. REQUIRES: `sink` outlives the recorder
  static Result<std::unique_ptr<RoutingRecorder>> Create(const TraceShape& shape, TraceSink& sink);

  bool wants_states() const { return shape_.columns != 0; }

  // A step: rows in the order of the batch, then what the forward pass tells, then the end.
  void BeginStep();
  // `first`: position of the first of `count` rows; `tokens` [count] what goes in.
  void AddRows(const StartSequence& sequence, int32_t first, std::span<const int32_t> tokens,
               bool prompt, bool last_is_sampled);
  // As in ForwardSink; of layers that the shape has.
  void OnRoutes(LayerId layer, const int32_t* ids, const float* weights);
  void OnRouterState(LayerId layer, const float* logits, const float* residual);
  void OnExpertResidual(LayerId layer, const float* residual);
  // The rows are part of the trace; without it, as when the step failed, they never were.
  void EndStep(std::span<const TraceSpan> spans);
  void EndSequence(SequenceId sequence);

  // Why the recording ended early; ok while it goes on.
  const Status& status() const { return status_; }

 private:
  RoutingRecorder(const TraceShape& shape, TraceSink& sink);
  int32_t MoeIndex(LayerId layer) const { return moe_index_[layer.index()]; }
  void Keep(const Status& status);

  const TraceShape shape_;
  TraceSink& sink_;
  std::vector<int32_t> moe_index_;                  // by layer of the stack; -1: dense
  std::vector<size_t> score_base_;                  // by MoE layer
  std::unordered_map<uint64_t, uint32_t> numbers_;  // of running sequences
  uint32_t sequences_ = 0;
  uint32_t step_ = 0;
  TraceRows rows_;  // of the present step
  Status status_;
};

}  // namespace expertflow
