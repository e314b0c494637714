#include "worker/expert_rows.h"

namespace expertflow {

ExpertRows::ExpertRows(const ExpertBlockSource& source) {
  for (int32_t layer = 0; layer < source.layers(); ++layer) {
    first_.push_back(total_);
    const int32_t experts = source.experts(LayerId(layer));
    if (experts == 0) continue;
    layers_.push_back(static_cast<uint32_t>(layer));
    experts_.push_back(static_cast<uint32_t>(experts));
    total_ += static_cast<size_t>(experts);
  }
  rows_ = std::make_unique<std::atomic<uint64_t>[]>(total_);
}

void ExpertRows::Count(LayerId layer, std::span<const LayerDemand> demands) {
  const size_t first = first_[layer.index()];
  for (const LayerDemand& demand : demands) {
    rows_[first + demand.expert.index()].fetch_add(
        static_cast<uint64_t>(demand.decode_rows) + static_cast<uint64_t>(demand.prefill_rows),
        std::memory_order_relaxed);
  }
}

ExpertReport ExpertRows::Report(ExpertPlace place) const {
  ExpertReport report;
  report.layers = layers_;
  report.experts = experts_;
  report.rows.reserve(total_);
  for (size_t i = 0; i < total_; ++i) {
    report.rows.push_back(rows_[i].load(std::memory_order_relaxed));
  }
  report.places.assign(total_, place);
  return report;
}

}  // namespace expertflow
