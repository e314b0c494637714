#include "worker/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "device/arena.h"
#include "worker/cached_executor.h"
#include "worker/logprobs.h"

namespace expertflow {
namespace {

// Dense weights where the store has them.
class MappedWeights final : public WeightSource {
 public:
  explicit MappedWeights(const StoreView& store) : store_(store) {}
  Result<WeightTensor> Dense(std::string_view name) const override {
    const DenseTensor* tensor = store_.FindDense(name);
    if (tensor == nullptr) return NotFound(fmt::format("the store has no tensor {}", name));
    return WeightTensor{tensor->data, tensor->dtype, tensor->shape};
  }

 private:
  const StoreView& store_;
};

// A private copy of them in device memory.
class ArenaWeights final : public WeightSource {
 public:
  // Where the store's tensors go, one after the other, aligned.
  static uint64_t Bytes(const StoreView& store) {
    uint64_t end = 0;
    for (const DenseTensor& tensor : store.dense()) end = ArenaEnd(end, tensor.bytes);
    return end;
  }
  static Result<std::unique_ptr<WeightSource>> Load(Device& device, const StoreView& store,
                                                    std::byte* base) {
    auto weights = std::make_unique<ArenaWeights>();
    uint64_t end = 0;
    for (const DenseTensor& tensor : store.dense()) {
      const uint64_t next = ArenaEnd(end, tensor.bytes);
      std::byte* data = base + (next - tensor.bytes);  // aligned
      RETURN_IF_ERROR(
          device.CopyToDevice(StreamKind::kManagement, data, tensor.data, tensor.bytes));
      weights->tensors_.emplace(tensor.name, WeightTensor{data, tensor.dtype, tensor.shape});
      end = next;
    }
    RETURN_IF_ERROR(device.SynchronizeStream(StreamKind::kManagement, Deadline::AfterMs(600'000)));
    return std::unique_ptr<WeightSource>(std::move(weights));
  }
  Result<WeightTensor> Dense(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    if (found == tensors_.end()) {
      return NotFound(fmt::format("the store has no tensor {}", name));
    }
    return found->second;
  }

 private:
  std::unordered_map<std::string, WeightTensor> tensors_;
};

}  // namespace

struct Engine::Sequence {
  StartSequence start;
  ScheduledSequence scheduled;
  int64_t started_ns = 0;
  std::shared_ptr<TokenMasks> masks;  // null: no grammar
  TokenMasks::StateId grammar_state = GrammarAutomaton::kDead;

  bool HasCaptures() const {
    return start.capture_logits || start.capture_routes || start.capture_logprobs >= 0;
  }
  bool Captures(int32_t position) const {
    return HasCaptures() && static_cast<uint32_t>(position) >= start.capture_from;
  }
  // Positions that are to be captured have to be computed.
  void SetCaptureFrom(uint32_t position) {
    start.capture_from = position;
    scheduled.reuse_max = HasCaptures() ? int64_t{position} : INT64_MAX;
  }
  const std::vector<int32_t>& tokens() const { return scheduled.tokens; }
  int32_t computed() const { return scheduled.computed; }
  int64_t tokens_max() const { return int64_t{start.prompt_tokens} + start.max_new_tokens; }
};

// Draws a step's tokens, and collects its logits and routes.
class Engine::Sink final : public ForwardSink {
 public:
  Sink(Engine& engine, StepOutput* output) : engine_(engine), output_(output) {
    for (const BatchEntry& entry : engine.batch_) {
      for (int32_t i = 0; i < entry.rows; ++i) {
        const int32_t position = entry.sequence->computed() + i;
        if (!entry.sequence->Captures(position)) continue;
        CapturedPosition captured;
        captured.sequence = entry.sequence->start.sequence;
        captured.position = static_cast<uint32_t>(position);
        captured_.push_back({entry.first_row + i, &entry.sequence->start});
        output->captured.push_back(std::move(captured));
      }
    }
  }

  Status OnLogits(int32_t row, std::span<const float> logits) override {
    for (const BatchEntry& entry : engine_.batch_) {
      if (row < entry.first_row || row >= entry.first_row + entry.rows) continue;
      Sequence& sequence = *entry.sequence;
      const auto next = static_cast<size_t>(sequence.computed() + row - entry.first_row) + 1;
      std::optional<int32_t> token;
      if (next < sequence.tokens().size()) {
        token = sequence.tokens()[next];
      } else {
        token = Draw(&sequence, logits);
      }
      Capture(row, logits, token);
    }
    return OkStatus();
  }

  bool WantsStates() const override {
    return engine_.recorder_ != nullptr && engine_.recorder_->wants_states();
  }
  void OnRouterState(LayerId layer, const float* logits, const float* residual) override {
    engine_.recorder_->OnRouterState(layer, logits, residual);
  }
  void OnExpertResidual(LayerId layer, const float* residual) override {
    engine_.recorder_->OnExpertResidual(layer, residual);
  }

  void OnRoutes(LayerId layer, const int32_t* ids, const float* weights) override {
    if (engine_.recorder_ != nullptr) engine_.recorder_->OnRoutes(layer, ids, weights);
    const auto k = static_cast<size_t>(engine_.architecture_.shape().top_k);
    if (engine_.demand_) {
      for (size_t row = 0; row < engine_.tokens_.size(); ++row) {
        engine_.demand_->Observe(engine_.tokens_[row], layer, {ids + row * k, k});
      }
    }
    for (size_t i = 0; i < captured_.size(); ++i) {
      if (!captured_[i].start->capture_routes) continue;
      const size_t begin = static_cast<size_t>(captured_[i].row) * k;
      auto& captured = output_->captured[i];
      captured.router_ids.insert(captured.router_ids.end(), ids + begin, ids + begin + k);
      captured.router_weights.insert(captured.router_weights.end(), weights + begin,
                                     weights + begin + k);
    }
  }

 private:
  struct CapturedRow {
    int32_t row = 0;
    const StartSequence* start = nullptr;
  };

  // Nothing when that is not possible; the sequence has then failed.
  std::optional<int32_t> Draw(Sequence* sequence, std::span<const float> logits) {
    const StartSequence& start = sequence->start;
    const auto position = static_cast<uint32_t>(sequence->tokens().size());
    auto token = DrawAllowed(sequence, logits, position);
    if (!token.ok()) {
      output_->failed.push_back(
          {start.sequence, static_cast<uint8_t>(token.status().code()), token.status().message()});
      return std::nullopt;
    }
    output_->tokens.push_back({start.sequence, position, *token, FinishReason::kNone});
    return *token;
  }

  Result<int32_t> DrawAllowed(Sequence* sequence, std::span<const float> logits,
                              uint32_t position) {
    const StartSequence& start = sequence->start;
    AllowedTokens allowed;
    if (sequence->masks != nullptr) {
      if (sequence->masks->full()) RETURN_IF_ERROR(engine_.Constrain(sequence));
      allowed.bits = sequence->masks->Allowed(sequence->grammar_state);
      if (sequence->masks->Accepts(sequence->grammar_state)) allowed.also = start.stop_tokens;
      const bool none = std::all_of(allowed.bits.begin(), allowed.bits.end(),
                                    [](uint64_t bits) { return bits == 0; });
      if (none && allowed.also.empty()) {
        return FailedPrecondition("the grammar allows none of the model's tokens here");
      }
    }
    const std::span<const float> adjusted =
        engine_.sampler_.Adjust(logits, start.sampling, sequence->tokens(), start.prompt_tokens,
                                sequence->masks == nullptr ? nullptr : &allowed);
    return engine_.sampler_.Sample(adjusted, start.sampling, position);
  }

  // `next`: the token at the position after this one.
  void Capture(int32_t row, std::span<const float> logits, std::optional<int32_t> next) {
    const auto found = std::lower_bound(
        captured_.begin(), captured_.end(), row,
        [](const CapturedRow& captured, int32_t wanted) { return captured.row < wanted; });
    if (found == captured_.end() || found->row != row) return;
    CapturedPosition& captured = output_->captured[static_cast<size_t>(found - captured_.begin())];
    const StartSequence& start = *found->start;
    if (start.capture_logits) captured.logits.assign(logits.begin(), logits.end());
    if (start.capture_logprobs >= 0 && next) {
      captured.logprobs = LogprobsOf(logits, *next, start.capture_logprobs);
    }
  }

  Engine& engine_;
  StepOutput* output_;
  std::vector<CapturedRow> captured_;  // by row; entry i fills output_->captured[i]
};

Engine::Engine(const EngineOptions& options, Device& device, const Architecture& architecture)
    : options_(options), device_(device), architecture_(architecture) {}

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options, Device& device,
                                               const Architecture& architecture,
                                               const StoreView& store, TimelineRecorder* timeline) {
  auto engine = std::unique_ptr<Engine>(new Engine(options, device, architecture));
  RETURN_IF_ERROR(engine->Init(store, timeline));
  return engine;
}

Status Engine::Init(const StoreView& store, TimelineRecorder* timeline) {
  const MemoryPlan& plan = options_.plan;
  timeline_ = timeline;
  blocks_ = std::make_unique<StoreBlockSource>(store);
  const std::vector<int32_t> slots = SlotsOf(plan.slot_classes);
  const uint64_t cache_bytes =
      plan.in_place ? 0 : CachedExecutorMemoryBytes(*blocks_, slots, plan.streaming_buffers);
  const uint64_t arena_bytes = cache_bytes + plan.kv_bytes;
  auto arena = device_.Allocate(arena_bytes);
  if (!arena.ok()) {
    return arena.status().WithContext(
        "arena for experts and KV cache (--expert-memory, --kv-memory)");
  }
  arena_ = std::move(arena).value();
  if (plan.in_place) {
    CHECK(device_.properties().host_pointers);
    weights_ = std::make_unique<MappedWeights>(store);
    executor_ = std::make_unique<InPlaceExecutor>(device_, *blocks_, timeline);
  } else {
    auto dense = device_.Allocate(ArenaWeights::Bytes(store));
    if (!dense.ok()) return dense.status().WithContext("dense weights");
    dense_ = std::move(dense).value();
    ASSIGN_OR_RETURN(weights_, ArenaWeights::Load(device_, store, dense_->data()));
    CachedExecutorOptions cache;
    cache.slots = slots;
    cache.stream_buffers = plan.streaming_buffers;
    cache.top_k = architecture_.shape().top_k;
    cache.sequences_max = options_.sequences_max;
    cache.memory = arena_->data();
    cache.memory_bytes = cache_bytes;
    cache.stride = options_.prefetch ? plan.limits.lookahead_max : 0;
    cache.dynamic_stride = options_.dynamic_stride;
    cache.stride_min = options_.stride_min;
    cache.published_stride = options_.published_stride;
    cache.prefetch.enabled = options_.prefetch;
    cache.ranking = options_.cache_ranking;
    cache.forecaster = options_.forecaster;
    cache.predictor = options_.predictor;
    cache.predictor_learns = options_.predictor_learns;
    cache.policy_time_most = options_.policy_time_most;
    cache.chunk_bytes = options_.transfer_chunk_bytes;
    ASSIGN_OR_RETURN(auto executor, CachedExecutor::Create(device_, *blocks_, cache, timeline));
    cached_ = executor.get();
    executor_ = std::move(executor);
  }
  kv_ =
      KvCache::Create(device_, architecture_.shape(), arena_->data() + arena_bytes, plan.kv_dtype);
  if (plan.exchanges_most > 0) {
    balance_.emplace(
        MemoryBalanceOptions{.exchange = plan.exchange, .exchanges_most = plan.exchanges_most});
  }
  const SchedulerOptions schedule = {.sequences_max = options_.sequences_max,
                                     .prefill_tokens_max = options_.prefill_tokens_max,
                                     .reuse_prefixes = options_.prefix_cache,
                                     .static_batches = options_.static_batches};
  const ModelShape& shape = architecture_.shape();
  if (options_.group_by_experts && plan.expert_slots < plan.experts_total && !plan.in_place) {
    demand_.emplace(shape.layers, shape.experts, shape.vocab);
  }
  scheduler_.emplace(schedule, plan.kv_blocks, demand_ ? &*demand_ : nullptr,
                     static_cast<KvRoom*>(this));
  ASSIGN_OR_RETURN(model_, architecture_.Build(device_, *weights_, plan.limits));
  return OkStatus();
}

Status Engine::Start(StartSequence start) {
  const ModelShape& shape = architecture_.shape();
  RETURN_IF_ERROR(CheckSamplingParams(start.sampling, shape.vocab));
  if (start.tokens.empty() || start.prompt_tokens < 1 ||
      start.prompt_tokens > start.tokens.size() || start.max_new_tokens < 1 ||
      start.tokens.size() - start.prompt_tokens >= start.max_new_tokens) {
    return InvalidArgument("a sequence needs a prompt and at least one token to generate");
  }
  if (sequences_.contains(start.sequence)) {
    return InvalidArgument(fmt::format("sequence {} is here already", start.sequence.value));
  }
  for (const int32_t token : start.tokens) {
    if (token < 0 || token >= shape.vocab) {
      return InvalidArgument(
          fmt::format("token id {} is outside the vocabulary of {}", token, shape.vocab));
    }
  }
  auto sequence = std::make_unique<Sequence>();
  ScheduledSequence& scheduled = sequence->scheduled;
  scheduled.id = start.sequence;
  scheduled.rank = start.rank;
  scheduled.prompt_tokens = static_cast<int32_t>(start.prompt_tokens);
  scheduled.tokens = std::move(start.tokens);
  sequence->start = std::move(start);
  sequence->SetCaptureFrom(sequence->start.capture_from);
  if (!sequence->start.grammar.empty()) RETURN_IF_ERROR(Constrain(sequence.get()));
  // The last token is never fed back, so it needs no place.
  const int64_t needed = sequence->tokens_max() - 1;
  const int64_t limit = std::min<int64_t>(options_.plan.limits.positions_max,
                                          static_cast<int64_t>(options_.plan.kv_tokens()));
  if (needed > limit) {
    return ResourceExhausted(fmt::format(
        "{} prompt tokens and {} new ones need {} positions of KV cache, there are {}; raise "
        "--kv-memory or ask for fewer tokens",
        sequence->start.prompt_tokens, sequence->start.max_new_tokens, needed, limit));
  }
  sequence->started_ns = NowNs();
  scheduler_->Add(&scheduled);
  sequences_.emplace(scheduled.id, std::move(sequence));
  CountSequences();
  return OkStatus();
}

Status Engine::Constrain(Sequence* sequence) {
  ASSIGN_OR_RETURN(sequence->masks, grammars_.Get(sequence->start.grammar));
  sequence->grammar_state = sequence->masks->start();
  const std::vector<int32_t>& tokens = sequence->tokens();
  for (size_t i = sequence->start.prompt_tokens; i < tokens.size(); ++i) {
    sequence->grammar_state = sequence->masks->Advance(sequence->grammar_state, tokens[i]);
    if (sequence->grammar_state == GrammarAutomaton::kDead) {
      return InvalidArgument(
          fmt::format("token {} at position {} is not allowed by the grammar", tokens[i], i));
    }
  }
  return OkStatus();
}

int64_t Engine::Give(int64_t blocks) {
  int64_t given = 0;
  if (!balance_) return given;
  for (int32_t left = balance_->ExchangesFor(blocks); left > 0; --left) {
    if (!cached_->CloseSlots(balance_->exchange().slots)) break;
    balance_->Gave();
    given += balance_->exchange().blocks;
  }
  return given;
}

Status Engine::BalanceMemory() {
  const KvBlocks& kv = scheduler_->kv();
  if (!balance_) return OkStatus();
  const auto running = static_cast<int64_t>(scheduler_->running());
  if (!balance_->OnStep(kv.available(), running)) return OkStatus();
  if (!scheduler_->ShrinkKv(balance_->exchange().blocks)) return OkStatus();
  balance_->TookBack();
  return cached_->OpenSlots(balance_->exchange().slots);
}

void Engine::CountSequences() {
  const KvBlocks& kv = scheduler_->kv();
  const std::lock_guard lock(stats_mutex_);
  counters_.kv_blocks_total = static_cast<uint64_t>(kv.total());
  counters_.kv_blocks_used = static_cast<uint64_t>(kv.held());
  counters_.kv_blocks_kept = static_cast<uint64_t>(kv.kept());
  counters_.reused_tokens = scheduler_->reused_tokens();
  counters_.preemptions = scheduler_->preemptions();
  counters_.sequences = static_cast<uint32_t>(sequences_.size());
}

void Engine::Cancel(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  if (recorder_ != nullptr) recorder_->EndSequence(id);
  if (timeline_ != nullptr) {
    timeline_->OnSequence({.sequence = id.value,
                           .begin_ns = found->second->started_ns,
                           .end_ns = NowNs(),
                           .trace_id = found->second->start.trace_id});
  }
  scheduler_->Remove(&found->second->scheduled);
  sequences_.erase(found);
  CountSequences();
}

Status Engine::CopyBlocks(const StepPlan& plan) {
  for (const StepPlan::Copy& copy : plan.copies) {
    RETURN_IF_ERROR(kv_->CopyTokens(copy.from, copy.to, copy.tokens));
  }
  return OkStatus();
}

void Engine::Preempted(const ScheduledSequence& scheduled) {
  Sequence& sequence = *sequences_.at(scheduled.id);
  const auto reached = static_cast<uint32_t>(scheduled.reached);
  sequence.SetCaptureFrom(std::max(sequence.start.capture_from, reached));
  // What is computed again is another sequence for the recorder.
  if (recorder_ != nullptr) recorder_->EndSequence(scheduled.id);
}

void Engine::AddRows(Sequence* sequence, int32_t count) {
  const ScheduledSequence& scheduled = sequence->scheduled;
  // A step that catches up on tokens it was given is no decode step, even with one token left.
  const bool decodes = scheduled.computed >= scheduled.given;
  const auto first = static_cast<int32_t>(tokens_.size());
  batch_.push_back({sequence, first, count});
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = scheduled.computed + i;
    tokens_.push_back(scheduled.tokens[static_cast<size_t>(position)]);
    rows_.push_back({scheduled.kv.blocks.data(), position});
    prefill_.push_back(decodes ? 0 : 1);
    row_sequences_.push_back(scheduled.id);
    const bool last = position + 1 == static_cast<int32_t>(scheduled.tokens.size());
    const bool captured = sequence->Captures(position) &&
                          (sequence->start.capture_logits || sequence->start.capture_logprobs >= 0);
    if (last || captured) logit_rows_.push_back(first + i);
  }
}

void Engine::BuildBatch(const StepPlan& plan) {
  batch_.clear();
  tokens_.clear();
  rows_.clear();
  prefill_.clear();
  logit_rows_.clear();
  row_sequences_.clear();
  for (const StepPlan::Rows& rows : plan.rows) {
    AddRows(sequences_.at(rows.sequence->id).get(), rows.count);
  }
}

void Engine::BeginRecord() {
  recorder_->BeginStep();
  for (const BatchEntry& entry : batch_) {
    const Sequence& sequence = *entry.sequence;
    const auto first = static_cast<size_t>(entry.first_row);
    const auto rows = static_cast<size_t>(entry.rows);
    const bool sampled =
        sequence.computed() + entry.rows == static_cast<int32_t>(sequence.tokens().size());
    recorder_->AddRows(sequence.start, sequence.computed(), std::span(tokens_).subspan(first, rows),
                       prefill_[first] != 0, sampled);
  }
}

void Engine::FinishBatch(StepOutput* output) {
  scheduler_->Advance();
  for (TokenEvent& event : output->tokens) {
    Sequence& sequence = *sequences_.at(event.sequence);
    if (event.position == sequence.start.prompt_tokens) {
      output->prompts.push_back(
          {event.sequence, static_cast<uint32_t>(sequence.scheduled.cached_tokens)});
    }
    sequence.scheduled.tokens.push_back(event.token);
    const auto& stop = sequence.start.stop_tokens;
    if (std::find(stop.begin(), stop.end(), event.token) != stop.end()) {
      event.finish = FinishReason::kStop;
    } else if (static_cast<int64_t>(sequence.tokens().size()) >= sequence.tokens_max()) {
      event.finish = FinishReason::kLength;
    }
    if (event.finish == FinishReason::kNone && sequence.masks != nullptr) {
      sequence.grammar_state = sequence.masks->Advance(sequence.grammar_state, event.token);
    }
    if (event.finish != FinishReason::kNone) Cancel(event.sequence);
  }
  for (const SequenceFailed& failed : output->failed) Cancel(failed.sequence);
}

// Nothing advanced; the step's sequences end with the reason, the engine goes on.
void Engine::FailBatch(const StepPlan& plan, const Status& status, StepOutput* output) {
  *output = {};
  std::vector<SequenceId> failed;
  for (const StepPlan::Rows& rows : plan.rows) failed.push_back(rows.sequence->id);
  for (const StepPlan::Copy& copy : plan.copies) {
    const SequenceId id = copy.sequence->id;
    if (std::find(failed.begin(), failed.end(), id) == failed.end()) failed.push_back(id);
  }
  for (const SequenceId id : failed) {
    output->failed.push_back({id, static_cast<uint8_t>(status.code()), status.message()});
    Cancel(id);
  }
}

Status Engine::Step(StepOutput* output) {
  *output = {};
  const StepPlan& plan = scheduler_->Plan(/*reuse=*/recorder_ == nullptr);
  for (const ScheduledSequence* preempted : plan.preempted) Preempted(*preempted);
  BuildBatch(plan);
  if (batch_.empty()) return OkStatus();
  const int64_t begin_ns = NowNs();
  ForwardBatch batch{tokens_, rows_, prefill_, kv_->layers(), logit_rows_, row_sequences_};
  Sink sink(*this, output);
  if (recorder_ != nullptr) BeginRecord();
  Status status = CopyBlocks(plan);
  if (status.ok()) status = model_->Forward(batch, *executor_, sink);
  if (!status.ok()) {
    FailBatch(plan, status, output);
    return OkStatus();
  }
  const auto decoded = std::count(prefill_.begin(), prefill_.end(), 0);
  FinishBatch(output);
  RETURN_IF_ERROR(BalanceMemory());
  CountSequences();
  const int64_t end_ns = NowNs();
  if (timeline_ != nullptr) {
    timeline_->OnStep(begin_ns, end_ns, static_cast<int64_t>(prefill_.size()));
    timeline_->TakeSpans(&spans_);
  }
  if (recorder_ != nullptr) recorder_->EndStep(spans_);

  const std::lock_guard lock(stats_mutex_);
  ++counters_.steps;
  counters_.decode_tokens += static_cast<uint64_t>(decoded);
  counters_.prefill_tokens += prefill_.size() - static_cast<size_t>(decoded);
  counters_.step_ns += static_cast<uint64_t>(end_ns - begin_ns);
  return OkStatus();
}

WorkerStats Engine::stats() const {
  WorkerStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = counters_;
  }
  const ExecutorStats experts = executor_->stats();
  stats.hits = experts.hits;
  stats.late_hits = experts.late_hits;
  stats.misses = experts.misses;
  stats.bypasses = experts.bypasses;
  stats.bytes_demand = experts.bytes_demand;
  stats.bytes_prefetch = experts.bytes_prefetch;
  stats.bytes_wasted = experts.bytes_wasted;
  stats.decision_digest = experts.decision_digest;
  stats.prefetch_cancelled = experts.prefetch_cancelled;
  stats.prefetch_enabled = experts.prefetch_enabled;
  stats.stride = experts.stride;
  stats.stride_changes = experts.stride_changes;
  static_assert(static_cast<int>(StrideReason::kLinkBound) ==
                static_cast<int>(StrideCause::kLinkBound));
  for (const StrideStep& step : experts.stride_steps) {
    stats.stride_moves.push_back(
        {step.event, static_cast<uint32_t>(step.stride), static_cast<StrideReason>(step.cause)});
  }
  stats.sampled_uses = experts.sampled.uses;
  stats.sampled_misses = experts.sampled.misses;
  stats.sampled_lru_misses = experts.sampled.lru_misses;
  stats.sampled_best_misses = experts.sampled.best_misses;
  stats.link_bound = experts.link_bound;
  stats.forecast_on = experts.forecast_on;
  stats.predictor_on = experts.predictor_on;
  stats.predictor_version = experts.predictor_version;
  stats.prefetch_predictions = experts.prefetch_predictions;
  stats.prefetch_correct = experts.prefetch_correct;
  stats.prefetch_routed = experts.prefetch_routed;
  stats.stall_ns = experts.stall_ns;
  stats.link_busy_ns = device_.transfer_counters().busy_ns;
  stats.link_bytes_per_second = device_.properties().link.bytes_per_second;
  stats.link_emulated = device_.properties().link.emulated;
  return stats;
}

}  // namespace expertflow
