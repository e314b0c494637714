#include "worker/cached_executor.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/units.h"
#include "predictor/core/dynamic_stride.h"

namespace expertflow {
namespace {

#ifdef EXPERTFLOW_POISON_SLOTS
constexpr bool kPoison = true;
#else
constexpr bool kPoison = false;
#endif

std::vector<int32_t> ExpertsPerLayer(const ExpertBlockSource& source) {
  std::vector<int32_t> experts;
  for (int32_t l = 0; l < source.layers(); ++l) experts.push_back(source.experts(LayerId(l)));
  return experts;
}

// Of each expert, layer by layer.
std::vector<uint64_t> BlockBytesOf(const ExpertBlockSource& source) {
  std::vector<uint64_t> bytes;
  for (int32_t l = 0; l < source.layers(); ++l) {
    for (int32_t e = 0; e < source.experts(LayerId(l)); ++e) {
      bytes.push_back(source.Block({LayerId(l), ExpertId(e)}).bytes);
    }
  }
  return bytes;
}

ExpertPolicyOptions PolicyOptions(const ExpertBlockSource& source,
                                  const CachedExecutorOptions& options) {
  ExpertPolicyOptions policy;
  policy.cache.experts = ExpertsPerLayer(source);
  const std::vector<SlotClass> classes = SlotClassesOfSource(source);
  policy.cache.block_bytes = BlockBytesOf(source);
  if (classes.size() > 1) {
    policy.cache.slot_class = SlotClassesOfEach(classes, policy.cache.block_bytes);
  }
  policy.cache.top_k = options.top_k;
  policy.cache.slots = options.slots;
  policy.cache.ranking = options.ranking;
  policy.prefetch = options.prefetch;
  policy.forecaster = options.forecaster;
  policy.samples_best_cache = true;
  policy.weighs_prefetch = options.dynamic_stride && options.stride > 0;
  policy.lead_min = options.stride_min;
  policy.sequences_max = static_cast<size_t>(std::max(1, options.sequences_max));
  return policy;
}

uint64_t LargestExpertBytes(const ExpertBlockSource& source) {
  const std::vector<uint64_t> bytes = BlockBytesOf(source);
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

// Sets `followed` to the result when the lead is decided elsewhere.
std::unique_ptr<StrideController> MakeStride(const ExpertBlockSource& source,
                                             const CachedExecutorOptions& options,
                                             FollowedStride** followed) {
  if (!options.dynamic_stride || options.stride == 0) {
    return std::make_unique<FixedStride>(options.stride);
  }
  const std::vector<int32_t> experts = ExpertsPerLayer(source);
  const auto moe_layers = static_cast<int32_t>(
      std::count_if(experts.begin(), experts.end(), [](int32_t count) { return count > 0; }));
  if (options.published_stride != nullptr) {
    auto stride = std::make_unique<FollowedStride>(FollowedStrideOptions{
        .moe_layers = moe_layers, .stride_min = options.stride_min, .stride_max = options.stride});
    *followed = stride.get();
    return stride;
  }
  return std::make_unique<DynamicStride>(
      DynamicStrideOptions{.expert_bytes = LargestExpertBytes(source),
                           .moe_layers = moe_layers,
                           .stride_min = options.stride_min,
                           .stride_max = options.stride});
}

}  // namespace

const bool kPoisonFreedSlots = kPoison;

std::vector<SlotClass> SlotClassesOfSource(const ExpertBlockSource& source) {
  return SlotClassesOf(CountBlocks(BlockBytesOf(source)));
}

std::vector<int32_t> SlotsOf(std::span<const SlotClass> classes) {
  std::vector<int32_t> slots;
  for (const SlotClass& c : classes) slots.push_back(static_cast<int32_t>(c.slots));
  return slots;
}

uint64_t CachedExecutorMemoryBytes(const ExpertBlockSource& source, std::span<const int32_t> slots,
                                   int32_t stream_buffers) {
  const std::vector<SlotClass> classes = SlotClassesOfSource(source);
  CHECK(slots.size() == classes.size());
  uint64_t bytes = static_cast<uint64_t>(stream_buffers) * classes.front().slot_bytes;
  for (size_t c = 0; c < classes.size(); ++c) {
    bytes += static_cast<uint64_t>(slots[c]) * classes[c].slot_bytes;
  }
  return bytes;
}

CachedExecutor::CachedExecutor(Device& device, const ExpertBlockSource& source,
                               const CachedExecutorOptions& options, ExecutorObserver* observer)
    : device_(device),
      source_(source),
      options_(options),
      predictions_(device, source, options.predictor, options.predictor_learns, options.top_k,
                   options.sequences_max, options.policy_time_most),
      observer_(observer),
      largest_block_bytes_(LargestExpertBytes(source)),
      classes_(SlotClassesOfSource(source)),
      rows_(source),
      forecast_cost_(options.policy_time_most),
      policy_(PolicyOptions(source, options), MakeStride(source, options, &followed_)),
      buffers_(static_cast<size_t>(options.stream_buffers)) {
  size_t widest = 0;
  for (int32_t l = 0; l < source.layers(); ++l) {
    layer_base_.push_back(blocks_.size());
    const int32_t experts = source.experts(LayerId(l));
    for (int32_t e = 0; e < experts; ++e) {
      blocks_.push_back(source.Block({LayerId(l), ExpertId(e)}));
    }
    widest = std::max(widest, static_cast<size_t>(experts));
  }
  PlaceSlots();
  jobs_.reserve(widest);
  job_buffers_.reserve(widest);
  arrived_.reserve(widest);
  bypass_.reserve(widest);
  demand_slot_.reserve(widest);
  demand_buffer_.reserve(widest);
  demand_pending_.reserve(widest);
}

void CachedExecutor::PlaceSlots() {
  std::byte* next = options_.memory;
  for (Buffer& buffer : buffers_) {
    buffer.data = next;
    next += classes_.front().slot_bytes;
  }
  for (size_t c = 0; c < classes_.size(); ++c) {
    for (int32_t s = 0; s < options_.slots[c]; ++s) {
      slots_.push_back({next, classes_[c].slot_bytes});
      next += classes_[c].slot_bytes;
    }
  }
  slot_copy_.resize(slots_.size());
  slot_waiting_.assign(slots_.size(), -1);
}

Result<std::unique_ptr<CachedExecutor>> CachedExecutor::Create(Device& device,
                                                               const ExpertBlockSource& source,
                                                               const CachedExecutorOptions& options,
                                                               ExecutorObserver* observer) {
  const size_t classes = SlotClassesOfSource(source).size();
  if (options.slots.size() != classes) {
    return InvalidArgument(fmt::format("expert cache: slots of {} sizes for blocks of {}",
                                       options.slots.size(), classes));
  }
  const int32_t fewest = *std::min_element(options.slots.begin(), options.slots.end());
  if (fewest < 0 || options.stream_buffers < 2 || options.top_k <= 0 || options.chunk_bytes == 0 ||
      options.outstanding_chunks < 1 || options.stride < 0 || options.stride_min < 1 ||
      (options.stride > 0 && options.stride_min > options.stride)) {
    return InvalidArgument(fmt::format(
        "expert cache: {} slots (>= 0), {} streaming buffers (>= 2), top-{} (>= 1), chunks of {} "
        "bytes (>= 1), {} outstanding (>= 1), stride {} (>= 0), at least {} (>= 1)",
        fewest, options.stream_buffers, options.top_k, options.chunk_bytes,
        options.outstanding_chunks, options.stride, options.stride_min));
  }
  if (options.forecaster != nullptr &&
      !ExpertPolicy::ForecasterFits(*options.forecaster, ExpertsPerLayer(source))) {
    return InvalidArgument("the forecaster was fitted for other layers than the store's");
  }
  if (options.predictor != nullptr &&
      !LayerPredictions::ModelFits(*options.predictor, source, options.top_k)) {
    return InvalidArgument("the expert predictor was fitted for other layers than the store's");
  }
  const uint64_t need = CachedExecutorMemoryBytes(source, options.slots, options.stream_buffers);
  if (options.memory == nullptr || options.memory_bytes < need) {
    return ResourceExhausted(
        fmt::format("expert cache: {} slots and {} streaming buffers need {}, there is {}",
                    std::accumulate(options.slots.begin(), options.slots.end(), int64_t{0}),
                    options.stream_buffers, FormatBytes(need), FormatBytes(options.memory_bytes)));
  }
  std::unique_ptr<CachedExecutor> executor(new CachedExecutor(device, source, options, observer));
  RETURN_IF_ERROR(executor->Init());
  return executor;
}

Status CachedExecutor::Init() {
  ASSIGN_OR_RETURN(compute_done_, device_.CreateEvent());
  for (size_t b = 0; b < buffers_.size(); ++b) {
    ASSIGN_OR_RETURN(buffers_[b].last_reader, device_.CreateEvent());
  }
  TransferEngineOptions engine;
  // Every copy owns a slot or a buffer, so this can never be too few.
  engine.queue.max_jobs = static_cast<int32_t>(slots_.size()) + options_.stream_buffers;
  engine.queue.max_outstanding_chunks = options_.outstanding_chunks;
  engine.queue.chunk_bytes = options_.chunk_bytes;
  engine.queue.speculative_bytes_per_window = options_.speculative_bytes_per_window;
  engine.copy_deadline_ns = options_.copy_deadline_ns;
  engine.poison = options_.poison;
  ASSIGN_OR_RETURN(engine_, TransferEngine::Create(device_, engine, *this, observer_));
  lookahead_.store(policy_.lookahead(), std::memory_order_relaxed);
  forecasts_ = policy_.has_forecaster();
  return OkStatus();
}

CachedExecutor::~CachedExecutor() {
  engine_.reset();
  // Compute may still read slots that the owner of the memory is about to give back.
  if (compute_done_.valid()) {
    (void)device_.Synchronize(compute_done_, Deadline::AfterNs(options_.copy_deadline_ns));
    device_.DestroyEvent(compute_done_);
  }
  for (const Buffer& buffer : buffers_) {
    if (buffer.last_reader.valid()) device_.DestroyEvent(buffer.last_reader);
  }
}

Status CachedExecutor::RunExperts(const MoeLayerCall& call) {
  RETURN_IF_ERROR(CheckLayerCall(source_, call));
  RETURN_IF_ERROR(groups_.Build(call));
  if (call.m == 0) return OkStatus();
  rows_.Count(call.layer, groups_.demands());
  if (observer_ != nullptr) observer_->OnLayerBegin(call.layer, NowNs());
  chosen_.assign(call.ids, call.ids + static_cast<ptrdiff_t>(call.m) * call.top_k);
  Observe(call);
  {
    TransferEngine::Lock lock(engine_->mutex());
    Decide(call, lock);
  }
  // What is missing is on its way by now.
  Status status = PlanPrefetch(call);
  if (status.ok() && !jobs_.empty()) device_.ops().ExpertMlp(jobs_, call.x, call.out);
  if (status.ok() && pending_ > 0) status = RunArrivals(call);
  const Status recorded = device_.Record(compute_done_, StreamKind::kCompute);
  {
    TransferEngine::Lock lock(engine_->mutex());
    AbandonPending();
    EventTimes times = TakeTimes(call.layer);
    times.predicted = predicted_;
    times.prediction_ns = prediction_ns_;
    policy_.End(times);
    if (followed_ != nullptr) {
      followed_->Follow(UnpackStride(options_.published_stride->load(std::memory_order_relaxed)));
    }
    if (!groups_.decode_rows().empty()) {
      JudgeForecast(times.layer_ns);
      predictions_.EndLayer(times.layer_ns);
    }
    ++layers_;
    lookahead_.store(policy_.lookahead(), std::memory_order_relaxed);
    engine_->Start(lock, false);
  }
  if (observer_ != nullptr) observer_->OnLayerEnd(call.layer, NowNs());
  return status.ok() ? recorded : status;
}

EventTimes CachedExecutor::TakeTimes(LayerId layer) {
  const int64_t now_ns = NowNs();
  const TransferCounters link = device_.transfer_counters();
  EventTimes times;
  // What lies between two passes is not a layer's time.
  if (layer_before_.valid() && layer_before_ < layer) times.layer_ns = now_ns - end_before_ns_;
  times.stall_ns = static_cast<int64_t>(stall_ns_ - stall_before_ns_);
  times.link_busy_ns = static_cast<int64_t>(link.busy_ns - link_before_.busy_ns);
  times.bytes_copied = link.bytes - link_before_.bytes;
  layer_before_ = layer;
  end_before_ns_ = now_ns;
  stall_before_ns_ = stall_ns_;
  link_before_ = link;
  return times;
}

// A forecast costs the same for small experts as for large ones, of which it saves far more time.
void CachedExecutor::JudgeForecast(int64_t layer_ns) {
  if (!forecasts_ || !forecast_cost_.Add(forecast_event_ns_, layer_ns)) return;
  forecasts_ = false;
  LogInfo(
      "the next-use forecaster takes {:.0f} % of the layers' time ({} of {} each), more than "
      "--policy-time allows ({:.0f} %); going on without it",
      forecast_cost_.share() * 100, FormatDurationNs(forecast_cost_.cost_mean_ns()),
      FormatDurationNs(forecast_cost_.layer_mean_ns()), forecast_cost_.most() * 100);
}

void CachedExecutor::Observe(const MoeLayerCall& call) {
  if (!forecasts_ || call.sequences.empty()) return;
  const int64_t begin_ns = NowNs();
  const auto k = static_cast<size_t>(call.top_k);
  const auto m = static_cast<size_t>(call.m);
  routed_.clear();
  for (size_t row = 0; row < m; ++row) {
    routed_.push_back({call.sequences[row],
                       call.prefill[row] != 0,
                       {std::span(chosen_).subspan(row * k, k), {call.weights + row * k, k}}});
  }
  const auto demands = groups_.demands();
  const auto distinct = std::count_if(demands.begin(), demands.end(),
                                      [](const LayerDemand& d) { return d.decode_rows > 0; });
  policy_.Observe(call.layer, routed_, static_cast<int32_t>(distinct));
  // Prompts are many tokens at once, and rare.
  forecast_event_ns_ = distinct > 0 ? NowNs() - begin_ns : 0;
}

void CachedExecutor::Decide(const MoeLayerCall& call, TransferEngine::Lock& lock) {
  engine_->Poll(lock);
  const std::span<const LayerDemand> demands = groups_.demands();
  for (const SlotRef slot : policy_.Begin(call.layer, demands)) {
    engine_->Cancel(slot_copy_[slot.slot.index()]);
  }
  if (!groups_.decode_rows().empty()) engine_->OpenWindow();
  const std::span<const DemandDecision> decisions = policy_.Decide();
  jobs_.clear();
  arrived_.clear();
  bypass_.clear();
  bypass_next_ = 0;
  pending_ = 0;
  event_status_ = OkStatus();
  demand_slot_.assign(demands.size(), SlotRef{});
  demand_buffer_.assign(demands.size(), -1);
  demand_pending_.assign(demands.size(), 0);
  for (size_t i = 0; i < decisions.size(); ++i) {
    const DemandDecision& d = decisions[i];
    demand_slot_[i] = d.slot;
    if (d.outcome == DemandOutcome::kHit) {
      jobs_.push_back(
          {WeightsAt(blocks_[Index(d.key)], slots_[d.slot.slot.index()].data, call.activation),
           groups_.rows(i)});
      continue;
    }
    ++pending_;
    demand_pending_[i] = 1;
    if (d.outcome == DemandOutcome::kBypass) {
      bypass_.push_back(static_cast<int32_t>(i));
      continue;
    }
    slot_waiting_[d.slot.slot.index()] = static_cast<int32_t>(i);
    if (d.outcome == DemandOutcome::kLateHit) {
      engine_->Promote(slot_copy_[d.slot.slot.index()]);
    } else {
      EnqueueSlotLoad(d.key, d.slot, CopyKind::kDemand, 0, 0);
    }
  }
  StartBypasses(call.layer);
  // With nothing to run this thread copies itself; otherwise the engine's thread works meanwhile.
  if (!jobs_.empty()) engine_->Start(lock, true);
}

void CachedExecutor::EnqueueSlotLoad(ExpertKey key, SlotRef slot, CopyKind kind,
                                     uint32_t probability_ppm, uint64_t deadline) {
  const ExpertBlock& block = blocks_[Index(key)];
  TransferJob job;
  job.request = {key, kind, block.bytes, probability_ppm, deadline};
  job.source = reinterpret_cast<const std::byte*>(block.data);
  const SlotMemory& memory = slots_[slot.slot.index()];
  job.destination = memory.data;
  job.destination_bytes = memory.bytes;
  job.after = compute_done_;
  job.slot = slot;
  const CopyId copy = engine_->Enqueue(job);
  CHECK(copy.valid());
  slot_copy_[slot.slot.index()] = copy;
}

Status CachedExecutor::PlanPrefetch(const MoeLayerCall& call) {
  predicted_ = 0;
  prediction_ns_ = call.pre_gate_ns;
  RETURN_IF_ERROR(predictions_.Observe(call, chosen_));
  const int32_t lookahead = lookahead_.load(std::memory_order_relaxed);
  if (groups_.decode_rows().empty() || lookahead == 0) return OkStatus();
  const int64_t begin_ns = NowNs();
  for (const LayerPredictions::Target& target :
       predictions_.Predict(call, groups_.decode_rows(), lookahead)) {
    const TransferEngine::Lock lock(engine_->mutex());
    for (const PrefetchLoad& load : policy_.Prefetch(target.layer, target.probability_ppm)) {
      EnqueueSlotLoad(load.plan.key, load.slot, CopyKind::kPrefetch, load.plan.probability_ppm,
                      load.plan.deadline);
    }
    ++predicted_;
  }
  prediction_ns_ += NowNs() - begin_ns;
  if (jobs_.empty()) return OkStatus();
  TransferEngine::Lock lock(engine_->mutex());
  engine_->Start(lock, pending_ > 0);
  return OkStatus();
}

void CachedExecutor::StartBypasses(LayerId layer) {
  for (size_t b = 0; b < buffers_.size() && bypass_next_ < bypass_.size(); ++b) {
    Buffer& buffer = buffers_[b];
    if (buffer.state != BufferState::kFree) continue;
    const int32_t demand = bypass_[bypass_next_++];
    const ExpertKey key{layer, groups_.demands()[static_cast<size_t>(demand)].expert};
    const ExpertBlock& block = blocks_[Index(key)];
    TransferJob job;
    job.request = {key, CopyKind::kDemand, block.bytes, 0, 0};
    job.source = reinterpret_cast<const std::byte*>(block.data);
    job.destination = buffer.data;
    job.destination_bytes = classes_.front().slot_bytes;
    job.after = buffer.last_reader;
    job.buffer = static_cast<int32_t>(b);
    buffer.copy = engine_->Enqueue(job);
    CHECK(buffer.copy.valid());
    buffer.state = BufferState::kCopying;
    buffer.waiting = demand;
  }
}

Status CachedExecutor::RunArrivals(const MoeLayerCall& call) {
  while (pending_ > 0) {
    {
      TransferEngine::Lock lock(engine_->mutex());
      engine_->Poll(lock);  // all that is here runs at once
      StartBypasses(call.layer);
      if (arrived_.empty()) RETURN_IF_ERROR(WaitForArrival(call.layer, lock));
      TakeArrivals(call);
      StartBypasses(call.layer);
      engine_->Start(lock, pending_ > static_cast<int32_t>(jobs_.size()));
    }
    device_.ops().ExpertMlp(jobs_, call.x, call.out);
    for (int32_t b : job_buffers_) {
      RETURN_IF_ERROR(
          device_.Record(buffers_[static_cast<size_t>(b)].last_reader, StreamKind::kCompute));
    }
    const TransferEngine::Lock lock(engine_->mutex());
    for (int32_t b : job_buffers_) buffers_[static_cast<size_t>(b)].state = BufferState::kFree;
    pending_ -= static_cast<int32_t>(jobs_.size());
  }
  return OkStatus();
}

Status CachedExecutor::WaitForArrival(LayerId layer, TransferEngine::Lock& lock) {
  const int64_t start_ns = NowNs();
  // A little longer than the engine waits for the device, so that its error, which knows more, is
  // the one that is seen.
  const Deadline deadline = Deadline::AtNs(start_ns + options_.copy_deadline_ns * 5 / 4);
  if (observer_ != nullptr) observer_->OnStallBegin(layer, start_ns);
  Status status = event_status_;
  while (status.ok() && arrived_.empty()) {
    status = engine_->WaitForCopy(lock, deadline);
    if (!event_status_.ok()) status = event_status_;
    StartBypasses(layer);
  }
  const int64_t end_ns = NowNs();
  stall_ns_ += static_cast<uint64_t>(end_ns - start_ns);
  if (observer_ != nullptr) observer_->OnStallEnd(layer, end_ns);
  if (status.ok() || !event_status_.ok()) return status;
  for (size_t i = 0; i < demand_pending_.size(); ++i) {
    if (demand_pending_[i] == 0) continue;
    const ExpertKey key{layer, groups_.demands()[i].expert};
    return status.WithContext(
        fmt::format("layer {} expert {} ({}) did not arrive in {}", layer.value, key.expert.value,
                    FormatBytes(blocks_[Index(key)].bytes), FormatDurationNs(end_ns - start_ns)));
  }
  return status;
}

void CachedExecutor::TakeArrivals(const MoeLayerCall& call) {
  jobs_.clear();
  job_buffers_.clear();
  size_t kept = 0;
  for (int32_t demand : arrived_) {
    const auto i = static_cast<size_t>(demand);
    const int32_t buffer = demand_buffer_[i];
    // While others wait for a buffer, one at a time: the next is copied while this one computes.
    if (buffer >= 0 && !job_buffers_.empty() && bypass_next_ < bypass_.size()) {
      arrived_[kept++] = demand;
      continue;
    }
    const ExpertBlock& block = blocks_[Index({call.layer, groups_.demands()[i].expert})];
    const std::byte* base = buffer >= 0 ? buffers_[static_cast<size_t>(buffer)].data
                                        : slots_[demand_slot_[i].slot.index()].data;
    jobs_.push_back({WeightsAt(block, base, call.activation), groups_.rows(i)});
    if (buffer >= 0) job_buffers_.push_back(buffer);
    demand_pending_[i] = 0;
  }
  arrived_.resize(kept);
}

void CachedExecutor::AbandonPending() {
  if (pending_ == 0) return;
  // After an error: nobody waits any more; slot loads go on and may serve later.
  std::fill(slot_waiting_.begin(), slot_waiting_.end(), -1);
  for (Buffer& buffer : buffers_) {
    buffer.waiting = -1;
    if (buffer.state == BufferState::kCopying) {
      engine_->Cancel(buffer.copy);
    } else {
      buffer.state = BufferState::kFree;
    }
  }
  arrived_.clear();
  bypass_.clear();
  bypass_next_ = 0;
  pending_ = 0;
}

void CachedExecutor::OnCopyEnd(const TransferJob& job, const CopyEnd& end, const Status& status) {
  if (end.state == CopyState::kFailed && copy_failures_++ == 0) {
    LogWarning("expert cache: {} (further failures are counted only)", status.ToString());
  }
  if (job.buffer >= 0) {
    OnBufferCopyEnd(job, end, status);
  } else {
    OnSlotCopyEnd(job, end, status);
  }
}

void CachedExecutor::OnSlotCopyEnd(const TransferJob& job, const CopyEnd& end,
                                   const Status& status) {
  switch (end.state) {
    case CopyState::kActive: return;
    case CopyState::kDone: policy_.cache().OnLoaded(job.slot); break;
    case CopyState::kFailed: policy_.cache().OnLoadFailed(job.slot); break;
    case CopyState::kCancelled:
      if (policy_.cache().IsSpeculative(job.slot)) {
        policy_.cache().OnPrefetchCancelled(job.slot, end.bytes_arrived);
        return;
      }
      // Asked for after it was cancelled and before its last chunk came back: once more.
      EnqueueSlotLoad(job.request.key, job.slot, CopyKind::kDemand, 0, 0);
      return;
  }
  Arrived(&slot_waiting_[job.slot.slot.index()], end, status);
}

void CachedExecutor::OnBufferCopyEnd(const TransferJob& job, const CopyEnd& end,
                                     const Status& status) {
  Buffer& buffer = buffers_[static_cast<size_t>(job.buffer)];
  if (buffer.waiting >= 0 && end.state == CopyState::kDone) {
    buffer.state = BufferState::kInUse;
    demand_buffer_[static_cast<size_t>(buffer.waiting)] = job.buffer;
  } else {
    buffer.state = BufferState::kFree;
  }
  Arrived(&buffer.waiting, end, status);
}

void CachedExecutor::Arrived(int32_t* waiting, const CopyEnd& end, const Status& status) {
  const int32_t demand = std::exchange(*waiting, -1);
  if (demand < 0) return;
  if (end.state == CopyState::kDone) {
    arrived_.push_back(demand);
  } else if (event_status_.ok()) {
    event_status_ = status;
  }
}

bool CachedExecutor::CloseSlots(int32_t count) {
  TransferEngine::Lock lock(engine_->mutex());
  const ExpertCache& cache = policy_.cache();
  const auto loading = [&](SlotId slot) {
    const ExpertKey key = cache.KeyOf(slot);
    return key.layer.valid() && cache.StateOf(key) == SlotState::kLoading;
  };
  // Between two layers all that is on its way is a guess.
  const int32_t first = std::max(0, cache.slots() - count);
  for (int32_t s = first; s < cache.slots(); ++s) {
    if (loading(SlotId(s)) && cache.IsSpeculative(cache.SlotOf(cache.KeyOf(SlotId(s))))) {
      engine_->Cancel(slot_copy_[static_cast<size_t>(s)]);
    }
  }
  const Deadline deadline = Deadline::AfterNs(options_.copy_deadline_ns);
  while (!policy_.CloseSlots(count)) {
    bool waits = false;
    for (int32_t s = first; s < cache.slots(); ++s) waits = waits || loading(SlotId(s));
    if (!waits || !engine_->WaitForCopy(lock, deadline).ok()) return false;
  }
  return true;
}

Status CachedExecutor::OpenSlots(int32_t count) {
  RETURN_IF_ERROR(device_.Record(compute_done_, StreamKind::kCompute));
  const TransferEngine::Lock lock(engine_->mutex());
  policy_.OpenSlots(count);
  return OkStatus();
}

ExecutorStats CachedExecutor::stats() const {
  const TransferEngine::Lock lock(engine_->mutex());
  const ExpertCacheStats& cache = policy_.cache().stats();
  const PrefetchPlannerStats& planner = policy_.planner().stats();
  ExecutorStats stats;
  stats.layers = layers_;
  stats.hits = cache.hits;
  stats.late_hits = cache.late_hits;
  stats.misses = cache.misses;
  stats.bypasses = cache.bypasses;
  stats.bytes_demand = engine_->queue_stats().demand_bytes;
  stats.bytes_prefetch = engine_->queue_stats().prefetch_bytes;
  stats.bytes_wasted = cache.bytes_wasted;
  stats.decision_digest = policy_.cache().digest();
  stats.prefetch_used = cache.prefetch_hits + cache.prefetch_late_hits;
  stats.prefetch_cancelled = cache.prefetch_cancelled;
  stats.prefetch_predictions = planner.predictions;
  stats.prefetch_correct = planner.correct;
  stats.prefetch_routed = planner.routed;
  stats.prefetch_switch_offs = planner.switch_offs;
  stats.stall_ns = stall_ns_;
  stats.copy_failures = copy_failures_;
  stats.slots = static_cast<uint64_t>(policy_.cache().slots());
  stats.slots_used = static_cast<uint64_t>(policy_.cache().slots_used());
  stats.demand_per_step = cache.demand_per_step;
  stats.thrashing = cache.thrashing;
  stats.stride = static_cast<uint32_t>(policy_.stride().stride());
  stats.stride_changes = policy_.stride().changes();
  const std::span<const StrideStep> steps = policy_.stride().steps();
  stats.stride_steps.assign(steps.begin(), steps.end());
  stats.sampled = policy_.best_cache();
  stats.forecast_on = forecasts_;
  stats.predictor_on = predictions_.learned();
  stats.predictor_version = predictions_.learnt_version();
  stats.link_bound = policy_.stride().link_bound();
  stats.prefetch_enabled = !slots_.empty() && options_.stride > 0 && policy_.prefetches();
  return stats;
}

std::optional<MeasuredStride> CachedExecutor::TakeStride() {
  if (followed_ == nullptr) return std::nullopt;
  const TransferEngine::Lock lock(engine_->mutex());
  const auto window = followed_->TakeWindow();
  if (!window) return std::nullopt;
  return MeasuredStride{largest_block_bytes_, options_.stride, *window};
}

ExpertReport CachedExecutor::experts() const {
  ExpertReport report = rows_.Report(ExpertPlace::kAbsent);
  const TransferEngine::Lock lock(engine_->mutex());
  size_t at = 0;
  for (size_t i = 0; i < report.layers.size(); ++i) {
    const LayerId layer(static_cast<int32_t>(report.layers[i]));
    for (uint32_t expert = 0; expert < report.experts[i]; ++expert, ++at) {
      switch (policy_.cache().StateOf({layer, ExpertId(static_cast<int32_t>(expert))})) {
        case SlotState::kFree: break;
        case SlotState::kLoading: report.places[at] = ExpertPlace::kLoading; break;
        case SlotState::kReady: report.places[at] = ExpertPlace::kResident; break;
      }
    }
  }
  return report;
}

Status CachedExecutor::CheckInvariants() const {
  const TransferEngine::Lock lock(engine_->mutex());
  RETURN_IF_ERROR(policy_.CheckInvariants());
  return engine_->queue().CheckInvariants();
}

}  // namespace expertflow
