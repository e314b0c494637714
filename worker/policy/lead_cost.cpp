#include "worker/policy/lead_cost.h"

#include <algorithm>
#include <cmath>

namespace expertflow {

void LeadCost::OnLayer(const Layer& layer) {
  if (layer.compute_ns <= 0) return;
  sums_.predicted += layer.predicted;
  sums_.prediction_ns += layer.prediction_ns;
  sums_.compute_ns += layer.compute_ns;
  sums_.link_busy_ns += layer.link_busy_ns;
  sums_.bytes_copied += layer.bytes_copied;
  if (++layers_ >= options_.period_layers) EndPeriod();
}

void LeadCost::EndPeriod() {
  if (sums_.predicted > 0) {
    const double layer_ns = static_cast<double>(sums_.compute_ns) / static_cast<double>(layers_);
    const double each_ns = static_cast<double>(sums_.prediction_ns) / sums_.predicted;
    share_ = each_ns / layer_ns;
    notable_ = share_ > (notable_ ? options_.notable_until : options_.notable_from);
    if (sums_.bytes_copied > 0) {
      const double copy_ns = static_cast<double>(options_.expert_bytes) *
                             static_cast<double>(sums_.link_busy_ns) /
                             static_cast<double>(sums_.bytes_copied);
      constexpr double kLayersMost = 1e6;
      copy_layers_ =
          static_cast<int32_t>(std::lround(std::clamp(copy_ns / layer_ns, 1.0, kLayersMost)));
    }
  }
  layers_ = 0;
  sums_ = {};
}

}  // namespace expertflow
