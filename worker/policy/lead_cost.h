// Whether more lead is worth its predictions: each layer of lead costs one prediction in every
// layer. Where that is a notable part of a layer's time, as with small experts, more lead than the
// copy of one expert needs costs more than the waits that it takes away (docs/policies.md), and
// Most() says so. Judged over periods of some hundred layers; a pure policy, one thread.
#pragma once

#include <cstdint>

namespace expertflow {

struct LeadCostOptions {
  uint64_t expert_bytes = 0;  // of the largest
  int64_t period_layers = 256;
  // Share of the time that a layer computes, of a prediction of one layer: from here on it is
  // notable, and until it is below that.
  double notable_from = 0.02;
  double notable_until = 0.01;
};

class LeadCost {
 public:
  explicit LeadCost(const LeadCostOptions& options) : options_(options) {}

  struct Layer {
    int32_t predicted = 0;      // layers that were predicted
    int64_t prediction_ns = 0;  // for all of them
    int64_t compute_ns = 0;     // 0: not known, and the layer does not count
    int64_t link_busy_ns = 0;
    uint64_t bytes_copied = 0;
  };
  // Of a step that only decodes.
  void OnLayer(const Layer& layer);

  // `lead`, or less: at least 1.
  int32_t Most(int32_t lead) const { return notable_ && lead > copy_layers_ ? copy_layers_ : lead; }
  // Of the latest period with predictions.
  double share() const { return share_; }

 private:
  void EndPeriod();

  const LeadCostOptions options_;
  int64_t layers_ = 0;
  Layer sums_;
  bool notable_ = false;
  int32_t copy_layers_ = 1;  // that compute while one expert is copied, to the nearest
  double share_ = 0;
};

}  // namespace expertflow
