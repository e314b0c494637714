// Executors of MoE layers: what they have in common, and the one that computes in place.
//
// InPlaceExecutor reads the mapped blocks where they lie (a device with host pointers); nothing is
// copied, every use is a hit. CachedExecutor (cached_executor.h) keeps a working set in device
// memory. Both give the same bits: an expert's rows do not depend on when or where it ran.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "model/arch/moe_executor.h"
#include "predictor/core/dynamic_stride.h"
#include "predictor/core/learnt_statistics.h"
#include "predictor/core/stride_controller.h"
#include "worker/executor_observer.h"
#include "worker/expert_block_source.h"
#include "worker/expert_rows.h"
#include "worker/policy/best_cache_sample.h"
#include "worker/row_groups.h"

namespace expertflow {

// Cumulative; the fields of the same name in transport/messages.h WorkerStats.
struct ExecutorStats {
  uint64_t layers = 0;  // RunExperts() calls
  uint64_t hits = 0;
  uint64_t late_hits = 0;
  uint64_t misses = 0;
  uint64_t bypasses = 0;
  uint64_t bytes_demand = 0;    // arrived
  uint64_t bytes_prefetch = 0;  // arrived
  uint64_t bytes_wasted = 0;
  uint64_t decision_digest = 0;  // of the cache
  uint64_t prefetch_used = 0;    // first use found it ready or on its way
  uint64_t prefetch_cancelled = 0;
  uint64_t prefetch_predictions = 0;
  uint64_t prefetch_correct = 0;
  uint64_t prefetch_routed = 0;
  uint64_t prefetch_switch_offs = 0;
  uint64_t stall_ns = 0;
  uint64_t copy_failures = 0;
  uint64_t slots = 0;
  uint64_t slots_used = 0;
  uint64_t demand_per_step = 0;  // distinct experts; slots / demand tells what a cache can do
  bool thrashing = false;
  bool prefetch_enabled = false;  // effective
  uint32_t stride = 0;            // of the prefetch, now
  uint64_t stride_changes = 0;
  std::vector<StrideStep> stride_steps;
  BestCacheSample::Counts sampled;
  bool link_bound = false;
  bool forecast_on = false;   // victims are ranked by a forecaster, now
  bool predictor_on = false;  // prefetch goes by a fitted predictor, now
  uint64_t predictor_version = 0;
};

struct MeasuredStride {
  uint64_t expert_bytes = 0;  // of the largest
  int32_t stride_max = 0;
  StrideWindow window;
};

class ExpertExecutor : public MoeExecutor {
 public:
  // Any thread.
  virtual ExecutorStats stats() const = 0;
  // What each expert was used for, and where it is.
  virtual ExpertReport experts() const = 0;

  // What predictions learn, for all workers (predictor/core/learnt_statistics.h); those that make
  // none have nothing. The engine's thread, between two steps.
  virtual std::shared_ptr<const LearntBatch> TakeLearnt(size_t /*bytes_most*/) { return nullptr; }
  virtual void AdoptLearnt(const LearntVersion& /*version*/, uint64_t /*included*/) {}
  // What was measured for a lead that is decided elsewhere, since the last call; nothing before
  // there is a window of it.
  virtual std::optional<MeasuredStride> TakeStride() { return std::nullopt; }
};

class InPlaceExecutor final : public ExpertExecutor {
 public:
  // REQUIRES: device, source and observer (may be null) outlive it; the device has host pointers
  InPlaceExecutor(Device& device, const ExpertBlockSource& source,
                  ExecutorObserver* observer = nullptr);

  int32_t LookaheadLayers() const override { return 0; }
  Status RunExperts(const MoeLayerCall& call) override;
  ExecutorStats stats() const override;
  ExpertReport experts() const override { return rows_.Report(ExpertPlace::kResident); }

 private:
  Device& device_;
  const ExpertBlockSource& source_;
  ExecutorObserver* observer_;
  RowGroups groups_;
  ExpertRows rows_;
  std::vector<ExpertJob> jobs_;
  std::atomic<uint64_t> layers_{0};
  std::atomic<uint64_t> hits_{0};
};

// An error that names the layer when `call` does not fit the model.
Status CheckLayerCall(const ExpertBlockSource& source, const MoeLayerCall& call);

}  // namespace expertflow
