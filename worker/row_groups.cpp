#include "worker/row_groups.h"

#include <fmt/core.h>

namespace expertflow {

Status RowGroups::Build(const MoeLayerCall& call) {
  if (call.m < 0 || call.top_k <= 0 || call.experts <= 0 ||
      call.prefill.size() != static_cast<size_t>(call.m)) {
    return InvalidArgument(
        fmt::format("layer {}: {} rows, top-{} of {} experts, {} prefill flags do not fit together",
                    call.layer.value, call.m, call.top_k, call.experts, call.prefill.size()));
  }
  demands_.clear();
  starts_.clear();
  decode_rows_.clear();
  cursor_.assign(static_cast<size_t>(call.experts), 0);
  rows_.resize(static_cast<size_t>(call.m) * static_cast<size_t>(call.top_k));
  const auto pairs = static_cast<int32_t>(rows_.size());
  for (int32_t i = 0; i < pairs; ++i) {
    const int32_t id = call.ids[i];
    if (id < 0 || id >= call.experts) {
      return Internal(fmt::format("layer {}: router chose expert {} of {} for row {}",
                                  call.layer.value, id, call.experts, i / call.top_k));
    }
    ++cursor_[static_cast<size_t>(id)];
  }
  int32_t start = 0;
  for (int32_t e = 0; e < call.experts; ++e) {
    int32_t& count = cursor_[static_cast<size_t>(e)];
    if (count == 0) continue;
    demands_.push_back({ExpertId(e), 0, 0});
    starts_.push_back(start);
    start += count;
    count = starts_.back();
  }
  starts_.push_back(start);
  for (int32_t i = 0; i < pairs; ++i) {
    int32_t& at = cursor_[static_cast<size_t>(call.ids[i])];
    rows_[static_cast<size_t>(at++)] = {i / call.top_k, i};
  }
  for (size_t g = 0; g < demands_.size(); ++g) {
    for (const ExpertRow& row : rows(g)) {
      const bool prefill = call.prefill[static_cast<size_t>(row.in_row)] != 0;
      ++(prefill ? demands_[g].prefill_rows : demands_[g].decode_rows);
    }
  }
  for (int32_t t = 0; t < call.m; ++t) {
    if (call.prefill[static_cast<size_t>(t)] == 0) decode_rows_.push_back(t);
  }
  return OkStatus();
}

}  // namespace expertflow
