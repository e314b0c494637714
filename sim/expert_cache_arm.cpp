#include <memory>
#include <utility>

#include "common/check.h"
#include "sim/replay_cache.h"
#include "worker/policy/expert_policy.h"

namespace expertflow {
namespace {

ExpertPolicyOptions PolicyOptions(bool with_forecast, const ReplaySetup& setup) {
  ExpertPolicyOptions options;
  options.cache.experts = setup.trace->experts;
  options.cache.block_bytes.assign(setup.block_bytes.begin(), setup.block_bytes.end());
  if (setup.block_bytes.empty()) {
    options.cache.block_bytes.assign(static_cast<size_t>(setup.lockstep->base.back()), 1);
  }
  options.cache.top_k = setup.trace->top_k;
  options.cache.slots = {setup.slots};
  if (!setup.slot_class.empty()) {
    options.cache.slot_class.assign(setup.slot_class.begin(), setup.slot_class.end());
    options.cache.slots.assign(setup.class_slots.begin(), setup.class_slots.end());
  }
  options.prefetch.enabled = false;
  options.sequences_max = static_cast<size_t>(setup.lockstep->batch);
  if (with_forecast) options.forecaster = setup.forecaster;
  return options;
}

// The worker's own policies, driven as its executor drives them; copies take no time.
class ExpertCacheArm final : public ReplayCache {
 public:
  ExpertCacheArm(bool with_forecast, const ReplaySetup& setup)
      : trace_(*setup.trace),
        base_(setup.lockstep->base),
        policy_(PolicyOptions(with_forecast, setup), std::make_unique<FixedStride>(0)),
        lane_sequence_(static_cast<size_t>(setup.lockstep->batch)) {}

  void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) override {
    demands_.clear();
    for (size_t i = 0; i < event.experts.size(); ++i) {
      const int32_t expert = event.experts[i] - base_[static_cast<size_t>(event.layer)];
      demands_.push_back({ExpertId(expert), event.users[i], 0});
    }
    if (policy_.has_forecaster()) Observe(event);
    policy_.Begin(LayerId(event.layer), demands_);
    const auto decisions = policy_.Decide();
    for (size_t i = 0; i < decisions.size(); ++i) {
      missed[i] = decisions[i].outcome == DemandOutcome::kHit ? 0 : 1;
      if (decisions[i].outcome == DemandOutcome::kLoad) {
        policy_.cache().OnLoaded(decisions[i].slot);
      }
    }
    policy_.End({});
  }

  int32_t resident() const override { return policy_.cache().slots_used(); }
  Status CheckInvariants() const override { return policy_.CheckInvariants(); }

 private:
  void Observe(const ReplayEvent& event) {
    routed_.clear();
    for (const Lockstep::Row& row : event.rows) {
      SequenceId& sequence = lane_sequence_[static_cast<size_t>(row.lane)];
      if (row.first && event.layer == 0) sequence = SequenceId{++sequences_};
      routed_.push_back(
          {sequence,
           false,
           {trace_.ChosenAt(row.row, event.layer), trace_.WeightsAt(row.row, event.layer)}});
    }
    policy_.Observe(LayerId(event.layer), routed_, static_cast<int32_t>(event.experts.size()));
  }

  const RoutingTrace& trace_;
  const std::vector<int32_t>& base_;
  ExpertPolicy policy_;
  std::vector<LayerDemand> demands_;
  std::vector<RoutedRow> routed_;
  std::vector<SequenceId> lane_sequence_;
  uint64_t sequences_ = 0;
};

}  // namespace

std::unique_ptr<ReplayCache> MakeExpertCacheArm(bool with_forecast, const ReplaySetup& setup) {
  CHECK(setup.trace != nullptr);
  return std::make_unique<ExpertCacheArm>(with_forecast, setup);
}

}  // namespace expertflow
