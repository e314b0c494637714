// Runs MoE layers from a working set of experts in device memory: slots under the two-level cache
// policy, streaming buffers for what gets no slot, prefetch from predictions of later layers.
//
// One layer: (1) the true routing goes to the cache; wrong prefetches for this layer are cancelled,
// missing experts are queued as demand; (2) later layers are predicted and prefetched; (3) all
// resident experts run in one op; (4) the others run as they arrive, bypassed ones through a ring
// of streaming buffers, so that one is copied while another computes; (5) the pins are released.
// Any number of slots works, none included.
//
// RunExperts() and LookaheadLayers() belong to the engine's thread; stats() to any. Policies are
// guarded by the transfer engine's mutex.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "predictor/core/followed_stride.h"
#include "worker/cache/slot_classes.h"
#include "worker/cost_meter.h"
#include "worker/expert_executor.h"
#include "worker/layer_predictions.h"
#include "worker/policy/expert_policy.h"
#include "worker/transfer_engine.h"

namespace expertflow {

// Set by the build option EXPERTFLOW_POISON.
extern const bool kPoisonFreedSlots;

struct CachedExecutorOptions {
  std::vector<int32_t> slots;  // of each class of the source's blocks (SlotClassesOfSource())
  int32_t stream_buffers = 2;  // at least 2
  int32_t top_k = 0;
  // Device memory, 4096-byte aligned, at least CachedExecutorMemoryBytes(). Outlives the executor.
  std::byte* memory = nullptr;
  size_t memory_bytes = 0;

  int32_t stride = 1;           // layers of lead of the prefetch, at most; 0: no prefetch
  bool dynamic_stride = false;  // the lead follows what is measured, from stride_min to `stride`
  int32_t stride_min = 1;
  // With dynamic_stride: the lead for all workers, as it is published (PackStride()), instead of
  // one of its own; outlives the executor. Null: its own.
  const std::atomic<uint64_t>* published_stride = nullptr;
  int32_t sequences_max = 16;  // run at once
  CacheRanking ranking = CacheRanking::kGuarded;
  std::shared_ptr<const NextUseModel> forecaster;  // ranks victims; null: the cache's own estimate
  std::shared_ptr<const HybridModel> predictor;    // what to prefetch; null: the pre-gate
  bool predictor_learns = true;                    // from what comes
  // Each of the two is given up when it takes more than this share of the layers' time.
  double policy_time_most = 0.05;
  PrefetchPlannerOptions prefetch;
  uint64_t speculative_bytes_per_window = UINT64_MAX;  // copied per layer event

  uint64_t chunk_bytes = 512 * 1024;
  int32_t outstanding_chunks = 16;  // at most; see TransferQueueOptions
  int64_t copy_deadline_ns = 30'000'000'000;
  bool poison = kPoisonFreedSlots;
};

// Without slots.
std::vector<SlotClass> SlotClassesOfSource(const ExpertBlockSource& source);
// The slots of each class, as CachedExecutorOptions takes them.
std::vector<int32_t> SlotsOf(std::span<const SlotClass> classes);
// Of `slots` of each class, and streaming buffers that hold the largest block.
// REQUIRES: as many classes as the source has
uint64_t CachedExecutorMemoryBytes(const ExpertBlockSource& source, std::span<const int32_t> slots,
                                   int32_t stream_buffers);

class CachedExecutor final : public ExpertExecutor, private TransferEngine::Listener {
 public:
  // REQUIRES: device, source and observer (may be null) outlive it
  static Result<std::unique_ptr<CachedExecutor>> Create(Device& device,
                                                        const ExpertBlockSource& source,
                                                        const CachedExecutorOptions& options,
                                                        ExecutorObserver* observer = nullptr);
  ~CachedExecutor() override;

  // None while the fitted predictor is in use, which does without pre-gates.
  int32_t LookaheadLayers() const override {
    return predictions_.learned() ? 0 : lookahead_.load(std::memory_order_relaxed);
  }
  // An error (a copy that failed or did not end in time) names the expert; the executor stays
  // usable and later calls give right results.
  Status RunExperts(const MoeLayerCall& call) override;
  ExecutorStats stats() const override;
  ExpertReport experts() const override;
  std::shared_ptr<const LearntBatch> TakeLearnt(size_t bytes_most) override {
    return predictions_.TakeLearnt(bytes_most);
  }
  void AdoptLearnt(const LearntVersion& version, uint64_t included) override {
    predictions_.AdoptLearnt(version, included);
  }
  std::optional<MeasuredStride> TakeStride() override;
  // Between two calls of RunExperts(), engine's thread. The memory of the last `count` slots is the
  // caller's from now on; false, and nothing changes, when an expert in one of them is in use or on
  // its way. Compute that reads a slot comes before what is put on the compute stream from now on.
  bool CloseSlots(int32_t count);
  // Gives it back. What was put on the compute stream for it comes before loads into it.
  Status OpenSlots(int32_t count);

  // Invariants of all policies; for tests.
  Status CheckInvariants() const;

 private:
  enum class BufferState : uint8_t { kFree, kCopying, kInUse };
  struct Buffer {
    std::byte* data = nullptr;
    BufferState state = BufferState::kFree;
    CopyId copy;
    EventHandle last_reader;
    int32_t waiting = -1;  // index into the event's demands
  };

  CachedExecutor(Device& device, const ExpertBlockSource& source,
                 const CachedExecutorOptions& options, ExecutorObserver* observer);
  void PlaceSlots();
  Status Init();
  size_t Index(ExpertKey key) const { return layer_base_[key.layer.index()] + key.expert.index(); }

  // The steps of RunExperts(); those with a Lock need the engine's mutex.
  void Decide(const MoeLayerCall& call, TransferEngine::Lock& lock);
  void Observe(const MoeLayerCall& call);
  Status PlanPrefetch(const MoeLayerCall& call);
  Status RunArrivals(const MoeLayerCall& call);
  void StartBypasses(LayerId layer);
  Status WaitForArrival(LayerId layer, TransferEngine::Lock& lock);
  void TakeArrivals(const MoeLayerCall& call);
  void AbandonPending();
  void EnqueueSlotLoad(ExpertKey key, SlotRef slot, CopyKind kind, uint32_t probability_ppm,
                       uint64_t deadline);
  void OnCopyEnd(const TransferJob& job, const CopyEnd& end, const Status& status) override;
  void OnSlotCopyEnd(const TransferJob& job, const CopyEnd& end, const Status& status);
  void OnBufferCopyEnd(const TransferJob& job, const CopyEnd& end, const Status& status);
  void Arrived(int32_t* waiting, const CopyEnd& end, const Status& status);
  EventTimes TakeTimes(LayerId layer);
  void JudgeForecast(int64_t layer_ns);

  Device& device_;
  const ExpertBlockSource& source_;
  const CachedExecutorOptions options_;
  LayerPredictions predictions_;
  ExecutorObserver* const observer_;
  const uint64_t largest_block_bytes_;
  const std::vector<SlotClass> classes_;
  std::vector<size_t> layer_base_;
  std::vector<ExpertBlock> blocks_;
  // Streaming buffers come first, then the classes, the largest slots first, so that the last slot
  // ends where the memory does.
  struct SlotMemory {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  std::vector<SlotMemory> slots_;
  EventHandle compute_done_;  // recorded at the end of each layer: the last reader of any slot

  // Of the current call, engine's thread.
  RowGroups groups_;
  ExpertRows rows_;
  std::vector<ExpertJob> jobs_;
  std::vector<int32_t> job_buffers_;  // streaming buffers that jobs_ read
  std::vector<RoutedRow> routed_;
  std::vector<uint16_t> chosen_;  // the call's ids, for forecaster and predictor
  // As of the end of the event before.
  LayerId layer_before_;
  int64_t end_before_ns_ = 0;
  int64_t forecast_event_ns_ = 0;
  CostMeter forecast_cost_;
  TransferCounters link_before_;
  uint64_t stall_before_ns_ = 0;

  // Protected by engine_->mutex().
  FollowedStride* followed_ = nullptr;  // the policy's stride, when it is decided elsewhere
  ExpertPolicy policy_;
  std::vector<CopyId> slot_copy_;      // by slot, while loading
  std::vector<int32_t> slot_waiting_;  // by slot: index into the event's demands, or -1
  std::vector<Buffer> buffers_;
  std::vector<int32_t> arrived_;  // demands of the event that can run now
  std::vector<int32_t> bypass_;   // demands that wait for a streaming buffer, from bypass_next_
  size_t bypass_next_ = 0;
  std::vector<SlotRef> demand_slot_;    // by demand
  std::vector<int32_t> demand_buffer_;  // by demand
  std::vector<uint8_t> demand_pending_;
  int32_t pending_ = 0;  // demands that did not run yet
  Status event_status_;
  uint64_t layers_ = 0;
  uint64_t stall_ns_ = 0;
  uint64_t copy_failures_ = 0;

  std::atomic<int32_t> lookahead_{0};
  // Of the present layer: layers ahead that were predicted, and what that took.
  int32_t predicted_ = 0;
  int64_t prediction_ns_ = 0;
  std::atomic<bool> forecasts_{false};      // there is a forecaster, and it is not too slow
  std::unique_ptr<TransferEngine> engine_;  // last: its thread uses the rest
};

}  // namespace expertflow
