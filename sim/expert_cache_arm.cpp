#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/check.h"
#include "predictor/core/next_use_forecaster.h"
#include "sim/replay_cache.h"
#include "worker/cache/expert_cache.h"

namespace expertflow {
namespace {

ExpertCacheOptions CacheOptions(const ReplaySetup& setup) {
  ExpertCacheOptions options;
  options.experts = setup.trace->experts;
  options.block_bytes.assign(static_cast<size_t>(setup.lockstep->base.back()), 1);
  options.top_k = setup.trace->top_k;
  options.slots = setup.slots;
  return options;
}

// The worker's own cache policy, driven as its executor drives it; copies take no time.
class ExpertCacheArm final : public ReplayCache {
 public:
  ExpertCacheArm(bool with_forecast, const ReplaySetup& setup)
      : trace_(*setup.trace),
        base_(setup.lockstep->base),
        cache_(CacheOptions(setup)),
        slots_(setup.slots) {
    if (!with_forecast || setup.forecaster == nullptr) return;
    CHECK(setup.forecaster->experts == trace_.experts);
    model_ = setup.forecaster;
    sequences_.resize(static_cast<size_t>(setup.lockstep->batch));
    distance_.resize(static_cast<size_t>(base_.back()));
  }

  void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) override {
    demands_.clear();
    for (size_t i = 0; i < event.experts.size(); ++i) {
      const int32_t expert = event.experts[i] - base_[static_cast<size_t>(event.layer)];
      demands_.push_back({ExpertId(expert), event.users[i], 0});
    }
    if (model_ != nullptr) Forecast(event);
    const auto decisions = cache_.BeginLayer(LayerId(event.layer), demands_);
    for (size_t i = 0; i < decisions.size(); ++i) {
      missed[i] = decisions[i].outcome == DemandOutcome::kHit ? 0 : 1;
      if (decisions[i].outcome == DemandOutcome::kLoad) cache_.OnLoaded(decisions[i].slot);
    }
    cache_.EndLayer();
  }

  int32_t resident() const override { return cache_.slots_used(); }
  Status CheckInvariants() const override { return cache_.CheckInvariants(); }

 private:
  // Follows how many experts a pass over the layers uses; the forecaster's horizon goes by it.
  void FollowDemand(const ReplayEvent& event) {
    pass_demand_ += static_cast<double>(event.experts.size());
    if (event.layer + 1 < trace_.layers()) return;
    demand_ = demand_ == 0 ? pass_demand_ : demand_ + (pass_demand_ - demand_) / 64;
    pass_demand_ = 0;
  }

  void Forecast(const ReplayEvent& event) {
    if (event.layer == 0) {
      const double demand =
          demand_ > 0 ? demand_ : static_cast<double>(event.experts.size()) * trace_.layers();
      const double ratio = slots_ / demand;
      if (!map_ || std::abs(std::log(std::max(ratio, 1e-6) / map_ratio_)) > 0.15) {
        map_.emplace(model_, ratio);
        map_ratio_ = std::max(ratio, 1e-6);
      }
    }
    active_.clear();
    for (const Lockstep::Row& row : event.rows) {
      auto& sequence = sequences_[static_cast<size_t>(row.lane)];
      if (row.first && event.layer == 0) sequence = std::make_unique<NextUseForecaster>(*map_);
      sequence->Observe(event.layer, trace_.ChosenAt(row.row, event.layer),
                        trace_.WeightsAt(row.row, event.layer));
      active_.push_back(sequence.get());
    }
    FollowDemand(event);
    // Ranks are asked for only when something is missing.
    const bool all_here = std::all_of(event.experts.begin(), event.experts.end(), [&](int32_t e) {
      const int32_t expert = e - base_[static_cast<size_t>(event.layer)];
      return cache_.StateOf({LayerId(event.layer), ExpertId(expert)}) != SlotState::kFree;
    });
    if (all_here) return;
    ExpectedDistances(*map_, event.layer, active_, distance_);
    cache_.UseForecast(distance_);
  }

  const RoutingTrace& trace_;
  const std::vector<int32_t>& base_;
  ExpertCache cache_;
  const double slots_;
  std::vector<LayerDemand> demands_;

  std::shared_ptr<const NextUseModel> model_;  // null: no forecast
  std::optional<NextUseMap> map_;
  double map_ratio_ = 1;
  double demand_ = 0;
  double pass_demand_ = 0;
  std::vector<std::unique_ptr<NextUseForecaster>> sequences_;  // by lane
  std::vector<const NextUseForecaster*> active_;
  std::vector<uint32_t> distance_;
};

}  // namespace

std::unique_ptr<ReplayCache> MakeExpertCacheArm(bool with_forecast, const ReplaySetup& setup) {
  CHECK(setup.trace != nullptr);
  return std::make_unique<ExpertCacheArm>(with_forecast, setup);
}

}  // namespace expertflow
