// What the layers ahead will use, for the rows of one MoE layer call: from a predictor that was
// fitted to the model while it is worth its time, else from the pre-gate.
//
// Belongs to the engine's thread; learned() and learnt_version() may be asked from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "model/arch/moe_executor.h"
#include "predictor/core/live_predictor.h"
#include "worker/cost_meter.h"
#include "worker/expert_block_source.h"

namespace expertflow {

class LayerPredictions {
 public:
  struct Target {
    LayerId layer;
    std::span<const uint32_t> probability_ppm;  // [experts] of being used by any decode row
  };

  // `model` null: the pre-gate alone; it learns from what comes if asked to. REQUIRES: device and
  // source outlive it; a model is one of these layers (ModelFits())
  LayerPredictions(Device& device, const ExpertBlockSource& source,
                   const std::shared_ptr<const HybridModel>& model, bool learns, int32_t top_k,
                   int32_t sequences_max, double cost_most);

  static bool ModelFits(const HybridModel& model, const ExpertBlockSource& source, int32_t top_k);

  // The fitted predictor is in use: the model need not work out pre-gates.
  bool learned() const { return learned_.load(std::memory_order_relaxed); }

  // Takes note of a layer's routing and states; before Predict() of the same call. `chosen`: the
  // call's ids [m, top_k].
  Status Observe(const MoeLayerCall& call, std::span<const uint16_t> chosen);
  // Of the MoE layers at most `lookahead` ahead, nearest first; valid until the next call.
  std::span<const Target> Predict(const MoeLayerCall& call, std::span<const int32_t> decode_rows,
                                  int32_t lookahead);
  // The layer's time, to judge the predictor by; 0: not known.
  void EndLayer(int64_t layer_ns);

  // Between layers: see LivePredictor. Nothing while the predictor is not in use.
  std::shared_ptr<const LearntBatch> TakeLearnt(size_t bytes_most);
  void AdoptLearnt(const LearntVersion& version, uint64_t included);
  uint64_t learnt_version() const { return learnt_version_.load(std::memory_order_relaxed); }

 private:
  Device& device_;
  std::vector<int32_t> experts_;      // by layer
  std::vector<int32_t> layer_order_;  // position among the MoE layers
  std::vector<LayerId> moe_layers_;
  const int32_t top_k_;
  std::unique_ptr<LivePredictor> live_;  // null: none
  std::atomic<bool> learned_{false};
  std::atomic<uint64_t> learnt_version_{0};
  CostMeter cost_;
  int64_t event_ns_ = 0;

  std::vector<float> residual_;  // host [m, hidden]
  std::vector<PredictorRow> rows_;
  std::vector<std::vector<uint32_t>> probability_ppm_;  // of the pre-gate, by target
  std::vector<Target> targets_;
};

}  // namespace expertflow
