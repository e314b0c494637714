// Where expert blocks lie in host memory. A tiny seam over the expert store, so that executors are
// tested without one. Immutable; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ids.h"
#include "device/ops.h"
#include "expert_store/store_view.h"

namespace expertflow {

class ExpertBlockSource {
 public:
  virtual ~ExpertBlockSource() = default;
  virtual int32_t layers() const = 0;
  // 0 for a dense layer.
  virtual int32_t experts(LayerId layer) const = 0;
  // REQUIRES: the expert exists. Its memory stays valid as long as the source.
  virtual ExpertBlock Block(ExpertKey key) const = 0;
};

// The mapped store. REQUIRES: `view` outlives it
class StoreBlockSource final : public ExpertBlockSource {
 public:
  explicit StoreBlockSource(const StoreView& view) : view_(view) {}
  int32_t layers() const override { return view_.layers(); }
  int32_t experts(LayerId layer) const override { return view_.ExpertsIn(layer); }
  ExpertBlock Block(ExpertKey key) const override { return view_.Expert(key); }

 private:
  const StoreView& view_;
};

// The block's matrices where its bytes lie at `base` (in place, or a copy of them).
inline MlpWeights WeightsAt(const ExpertBlock& block, const void* base,
                            const Activation& activation) {
  const auto* bytes = static_cast<const std::byte*>(base);
  const auto hidden = static_cast<int32_t>(block.hidden);
  const auto intermediate = static_cast<int32_t>(block.intermediate);
  MlpWeights weights;
  weights.gate = {bytes + block.gate_offset, block.types.gate, intermediate, hidden};
  weights.up = {bytes + block.up_offset, block.types.up, intermediate, hidden};
  weights.down = {bytes + block.down_offset, block.types.down, hidden, intermediate};
  if (block.bias_dtype) {
    const DType bias = *block.bias_dtype;
    weights.gate_bias = {bytes + block.gate_bias_offset, bias, intermediate};
    weights.up_bias = {bytes + block.up_bias_offset, bias, intermediate};
    weights.down_bias = {bytes + block.down_bias_offset, bias, hidden};
  }
  weights.activation = activation;
  return weights;
}

}  // namespace expertflow
