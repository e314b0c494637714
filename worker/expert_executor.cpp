#include "worker/expert_executor.h"

#include <fmt/core.h>

#include "common/check.h"
#include "common/clock.h"

namespace expertflow {

Status CheckLayerCall(const ExpertBlockSource& source, const MoeLayerCall& call) {
  const bool known = call.layer.valid() && call.layer.value < source.layers();
  const int32_t experts = known ? source.experts(call.layer) : 0;
  if (experts == 0 || experts != call.experts) {
    return InvalidArgument(fmt::format("layer {}: asked for {} experts, the store has {}",
                                       call.layer.value, call.experts, experts));
  }
  return OkStatus();
}

InPlaceExecutor::InPlaceExecutor(Device& device, const ExpertBlockSource& source,
                                 ExecutorObserver* observer)
    : device_(device), source_(source), observer_(observer), rows_(source) {
  CHECK(device.properties().host_pointers);
}

Status InPlaceExecutor::RunExperts(const MoeLayerCall& call) {
  RETURN_IF_ERROR(CheckLayerCall(source_, call));
  RETURN_IF_ERROR(groups_.Build(call));
  rows_.Count(call.layer, groups_.demands());
  if (observer_ != nullptr) observer_->OnLayerBegin(call.layer, NowNs());
  jobs_.clear();
  for (size_t g = 0; g < groups_.demands().size(); ++g) {
    const ExpertBlock block = source_.Block({call.layer, groups_.demands()[g].expert});
    jobs_.push_back({WeightsAt(block, block.data, call.activation), groups_.rows(g)});
  }
  if (!jobs_.empty()) device_.ops().ExpertMlp(jobs_, call.x, call.out);
  layers_.fetch_add(1, std::memory_order_relaxed);
  hits_.fetch_add(jobs_.size(), std::memory_order_relaxed);
  if (observer_ != nullptr) observer_->OnLayerEnd(call.layer, NowNs());
  return OkStatus();
}

ExecutorStats InPlaceExecutor::stats() const {
  ExecutorStats stats;
  stats.layers = layers_.load(std::memory_order_relaxed);
  stats.hits = hits_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace expertflow
