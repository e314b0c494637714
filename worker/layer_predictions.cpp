#include "worker/layer_predictions.h"

#include <algorithm>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/units.h"
#include "predictor/core/hybrid_predictor.h"
#include "predictor/core/pre_gate_predictor.h"

namespace expertflow {

LayerPredictions::LayerPredictions(Device& device, const ExpertBlockSource& source,
                                   const std::shared_ptr<const HybridModel>& model, bool learns,
                                   int32_t top_k, int32_t sequences_max, double cost_most)
    : device_(device), top_k_(top_k), cost_(cost_most) {
  for (int32_t l = 0; l < source.layers(); ++l) {
    experts_.push_back(source.experts(LayerId(l)));
    layer_order_.push_back(experts_.back() > 0 ? static_cast<int32_t>(moe_layers_.size()) : -1);
    if (experts_.back() > 0) moe_layers_.push_back(LayerId(l));
  }
  if (model == nullptr) return;
  CHECK(ModelFits(*model, source, top_k));
  live_ = std::make_unique<LivePredictor>(model, static_cast<size_t>(std::max(1, sequences_max)),
                                          learns);
  learned_ = true;
}

bool LayerPredictions::ModelFits(const HybridModel& model, const ExpertBlockSource& source,
                                 int32_t top_k) {
  std::vector<int32_t> experts;
  for (int32_t l = 0; l < source.layers(); ++l) {
    if (source.experts(LayerId(l)) > 0) experts.push_back(source.experts(LayerId(l)));
  }
  return model.experts == experts && model.top_k == top_k;
}

Status LayerPredictions::Observe(const MoeLayerCall& call, std::span<const uint16_t> chosen) {
  event_ns_ = 0;
  if (!learned() || call.sequences.empty() || call.tokens.empty() || call.residual == nullptr) {
    return OkStatus();
  }
  const int64_t begin_ns = NowNs();
  const auto m = static_cast<size_t>(call.m);
  const auto k = static_cast<size_t>(call.top_k);
  const auto hidden = static_cast<size_t>(call.hidden);
  residual_.resize(m * hidden);
  RETURN_IF_ERROR(device_.CopyToHost(StreamKind::kCompute, residual_.data(), call.residual,
                                     residual_.size() * sizeof(float)));
  RETURN_IF_ERROR(device_.SynchronizeStream(StreamKind::kCompute, Deadline::AfterMs(60'000)));
  rows_.clear();
  for (size_t row = 0; row < m; ++row) {
    rows_.push_back({call.sequences[row],
                     call.tokens[row],
                     call.prefill[row] != 0,
                     std::span(residual_).subspan(row * hidden, hidden),
                     chosen.subspan(row * k, k),
                     {call.weights + row * k, k}});
  }
  live_->Observe(layer_order_[call.layer.index()], rows_);
  event_ns_ = NowNs() - begin_ns;
  return OkStatus();
}

std::span<const LayerPredictions::Target> LayerPredictions::Predict(
    const MoeLayerCall& call, std::span<const int32_t> decode_rows, int32_t lookahead) {
  targets_.clear();
  if (learned()) {
    const int64_t begin_ns = NowNs();
    const int32_t ahead = live_->Predict(std::min(lookahead, kPredictDistances));
    const auto here = static_cast<size_t>(layer_order_[call.layer.index()]);
    for (int32_t distance = 1; distance <= ahead; ++distance) {
      targets_.push_back(
          {moe_layers_[here + static_cast<size_t>(distance)], live_->ProbabilityPpm(distance)});
    }
    event_ns_ += NowNs() - begin_ns;
    return targets_;
  }
  probability_ppm_.resize(std::max(probability_ppm_.size(), call.pre_gate.size()));
  for (size_t i = 0; i < call.pre_gate.size(); ++i) {
    const PreGate& gate = call.pre_gate[i];
    const int32_t experts = experts_[gate.target.index()];
    if (experts == 0) continue;
    std::vector<uint32_t>& ppm = probability_ppm_[i];
    ppm.resize(static_cast<size_t>(experts));
    PredictFromPreGate(layer_order_[gate.target.index()] - layer_order_[call.layer.index()], top_k_,
                       decode_rows, gate.logits, ppm);
    targets_.push_back({gate.target, ppm});
  }
  return targets_;
}

// A prediction costs the same for small experts as for large ones, of which it saves far more time.
void LayerPredictions::EndLayer(int64_t layer_ns) {
  if (!learned() || event_ns_ == 0 || !cost_.Add(event_ns_, layer_ns)) return;
  learned_ = false;
  LogInfo(
      "the expert predictor takes {:.0f} % of the layers' time ({} of {} each), more than "
      "--policy-time allows ({:.0f} %); going on with the pre-gate",
      cost_.share() * 100, FormatDurationNs(cost_.cost_mean_ns()),
      FormatDurationNs(cost_.layer_mean_ns()), cost_.most() * 100);
}

std::shared_ptr<const LearntBatch> LayerPredictions::TakeLearnt(size_t bytes_most) {
  return learned() ? live_->TakeBatch(bytes_most) : nullptr;
}

void LayerPredictions::AdoptLearnt(const LearntVersion& version, uint64_t included) {
  if (!learned()) return;
  live_->Adopt(version, included);
  learnt_version_.store(live_->version(), std::memory_order_relaxed);
}

}  // namespace expertflow
