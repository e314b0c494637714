// The engine of a worker: a set of running sequences, stepped together over one model.
//
// Each step takes the tokens that the scheduler says (schedule/step_scheduler.h), runs the forward
// pass, and samples where a sequence has reached its end. Sequences do not influence each other's
// output. Owned by one thread; stats() may be called from another.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "expert_store/store_view.h"
#include "model/arch/architecture.h"
#include "model/arch/model.h"
#include "predictor/core/hybrid_model.h"
#include "predictor/core/next_use_forecaster.h"
#include "transport/messages.h"
#include "worker/expert_executor.h"
#include "worker/grammar_cache.h"
#include "worker/kv_cache.h"
#include "worker/memory_plan.h"
#include "worker/routing_recorder.h"
#include "worker/sampler.h"
#include "worker/schedule/memory_balance.h"
#include "worker/schedule/step_scheduler.h"
#include "worker/timeline.h"

namespace expertflow {

class CachedExecutor;

struct EngineOptions {
  MemoryPlan plan;
  int32_t sequences_max = 16;
  int32_t prefill_tokens_max = 512;
  bool prefix_cache = true;       // not while routing is recorded: a trace has every token
  bool static_batches = false;    // SchedulerOptions
  bool group_by_experts = false;  // admit next what needs the same experts; not in place
  bool prefetch = true;           // by plan.limits.lookahead_max layers, at most
  bool dynamic_stride = true;     // else by exactly as many
  int32_t stride_min = 1;         // with that, at least
  const std::atomic<uint64_t>* published_stride = nullptr;  // CachedExecutorOptions
  CacheRanking cache_ranking = CacheRanking::kGuarded;
  std::shared_ptr<const NextUseModel> forecaster;  // null: none
  std::shared_ptr<const HybridModel> predictor;    // null: the pre-gate
  bool predictor_learns = true;                    // from what comes
  double policy_time_most = 0.05;                  // of a layer's time, for each of the two
  uint64_t transfer_chunk_bytes = 1 << 20;
};

// What a step produced, in this order.
struct StepOutput {
  std::vector<CapturedPosition> captured;
  std::vector<TokenEvent> tokens;
  std::vector<PromptDone> prompts;
  std::vector<SequenceFailed> failed;
};

class Engine final : private KvRoom {
 public:
  // Allocates what the plan says. `timeline` may be null. REQUIRES: all references outlive the
  // engine
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options, Device& device,
                                                const Architecture& architecture,
                                                const StoreView& store, TimelineRecorder* timeline);
  ~Engine() override;

  // Every step from now on goes to `recorder`, which outlives the engine; null: none.
  void RecordTo(RoutingRecorder* recorder) { recorder_ = recorder; }
  // Queues a sequence; it starts when a place and KV blocks are free. An error says why it never
  // can. When other sequences need its blocks it waits again, and then goes on.
  Status Start(StartSequence start);
  // The vocabulary that grammars are about. An error is the sender's.
  Status SetTokens(const TokenBytes& tokens) { return grammars_.SetTokens(tokens); }
  // Unknown sequences are ignored: it may have ended meanwhile.
  void Cancel(SequenceId sequence);
  bool idle() const { return sequences_.empty(); }
  // One step. Failures of sequences are part of the output; an error is the engine's own and final.
  Status Step(StepOutput* output);

  // Between two steps; see ExpertExecutor.
  std::shared_ptr<const LearntBatch> TakeLearnt(size_t bytes_most) {
    return executor_->TakeLearnt(bytes_most);
  }
  void AdoptLearnt(const LearntVersion& version, uint64_t included) {
    executor_->AdoptLearnt(version, included);
  }
  std::optional<MeasuredStride> TakeStride() { return executor_->TakeStride(); }

  WorkerStats stats() const;                                     // any thread
  ExpertReport experts() const { return executor_->experts(); }  // any thread

 private:
  struct Sequence;
  class Sink;

  Engine(const EngineOptions& options, Device& device, const Architecture& architecture);
  Status Init(const StoreView& store, TimelineRecorder* timeline);
  // Puts the sequence where its grammar is after what was generated so far.
  Status Constrain(Sequence* sequence);
  void CountSequences();
  int64_t Give(int64_t blocks) override;
  // Blocks that were not needed for a while become slots again.
  Status BalanceMemory();
  Status CopyBlocks(const StepPlan& plan);
  void Preempted(const ScheduledSequence& scheduled);
  void BuildBatch(const StepPlan& plan);
  void AddRows(Sequence* sequence, int32_t count);
  void BeginRecord();
  void FinishBatch(StepOutput* output);
  void FailBatch(const StepPlan& plan, const Status& status, StepOutput* output);

  const EngineOptions options_;
  Device& device_;
  const Architecture& architecture_;
  TimelineRecorder* timeline_ = nullptr;
  RoutingRecorder* recorder_ = nullptr;
  std::unique_ptr<ExpertBlockSource> blocks_;
  std::unique_ptr<DeviceAllocation> dense_;  // null: in place
  // Streaming buffers, slots, and from the other end KV blocks.
  std::unique_ptr<DeviceAllocation> arena_;
  std::unique_ptr<WeightSource> weights_;
  std::unique_ptr<ExpertExecutor> executor_;
  CachedExecutor* cached_ = nullptr;  // executor_, if it has slots
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Model> model_;
  Sampler sampler_;
  GrammarCache grammars_;

  std::optional<ExpertDemand> demand_;                         // none: all experts are at hand
  std::optional<MemoryBalance> balance_;                       // none: the border does not move
  std::optional<StepScheduler> scheduler_;                     // set by Init()
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;  // those of the scheduler

  // The batch of the current step.
  struct BatchEntry {
    Sequence* sequence = nullptr;
    int32_t first_row = 0;
    int32_t rows = 0;
  };
  std::vector<BatchEntry> batch_;
  std::vector<int32_t> tokens_;
  std::vector<AttentionRow> rows_;
  std::vector<uint8_t> prefill_;
  std::vector<int32_t> logit_rows_;
  std::vector<SequenceId> row_sequences_;
  std::vector<TimelineSpan> spans_;  // of the step, for the recorder

  mutable std::mutex stats_mutex_;
  WorkerStats counters_;  // guarded by stats_mutex_: what the engine itself counts
};

}  // namespace expertflow
