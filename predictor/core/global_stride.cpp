#include "predictor/core/global_stride.h"

#include <algorithm>

namespace expertflow {
namespace {

constexpr int32_t kReportedMost = 64;

}  // namespace

bool GlobalStride::OnReport(WorkerId worker, uint64_t expert_bytes, int32_t stride_max,
                            const StrideWindow& window) {
  if (!stride_) {
    if (expert_bytes == 0 || stride_max <= 0) return false;
    // Windows come as wholes: how many layers would make one does not matter.
    stride_.emplace(DynamicStrideOptions{.expert_bytes = expert_bytes,
                                         .moe_layers = 1,
                                         .stride_max = std::min(stride_max, kReportedMost)});
  }
  bool changed = false;
  if (round_.contains(worker)) changed = Close();
  round_.emplace(worker, window);
  const bool all = std::all_of(expected_.begin(), expected_.end(),
                               [&](WorkerId id) { return round_.contains(id); });
  if (all) changed |= Close();
  return changed;
}

void GlobalStride::Forget(WorkerId worker) {
  expected_.erase(worker);
  round_.erase(worker);
}

bool GlobalStride::Close() {
  StrideWindow sum;
  expected_.clear();
  for (const auto& [worker, window] : round_) {
    sum.Add(window);
    expected_.insert(worker);
  }
  round_.clear();
  ++rounds_;
  stride_->OnWindow(sum);
  const StrideStep& last = stride_->steps().back();
  const bool same = published_.number != 0 && published_.stride == last.stride &&
                    published_.cause == last.cause &&
                    published_.link_bound == stride_->link_bound();
  if (same) return false;
  published_ = {published_.number + 1, last.stride, last.cause, stride_->link_bound()};
  return true;
}

}  // namespace expertflow
