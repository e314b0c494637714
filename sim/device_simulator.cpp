#include "sim/device_simulator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "common/check.h"
#include "sim/replay_cache.h"

namespace expertflow {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr uint32_t kDistanceUnit = 1024;  // of a step, as ExpertCache counts

// Chunks go out as the queue gives them and pass the link one after the other; each arrives a
// latency after it has passed.
class SimLink {
 public:
  SimLink(const TransferQueueOptions& queue, const DeviceSimOptions& options, SharedLink* shared)
      : queue_(queue),
        shared_(shared),
        bytes_per_second_(options.link_bytes_per_second),
        latency_ns_(options.link_latency_ns),
        chunk_prepare_ns_(options.chunk_prepare_ns),
        chunk_start_ns_(options.chunk_start_ns),
        chunk_copy_ns_(options.chunk_copy_ns) {}

  TransferQueue& queue() { return queue_; }
  const TransferQueue& queue() const { return queue_; }
  void SetRate(uint64_t bytes_per_second) {
    bytes_per_second_ = bytes_per_second;
    known_bytes_ = 0;
  }
  int64_t busy_ns() const { return busy_ns_; }

  // Gives out what the queue has, from `now_ns` on. Returns when the last one has been started.
  int64_t Start(int64_t now_ns) {
    while (const auto chunk = queue_.NextChunk()) {
      const int64_t passes_ns = PassesNs(chunk->bytes);
      now_ns = std::max(now_ns, starter_free_at_ns_) + chunk_prepare_ns_;
      const int64_t begin_ns = std::max(free_at_ns_, now_ns);
      free_at_ns_ = begin_ns + passes_ns;
      if (shared_ != nullptr) {
        const SharedLink::Passage shared = shared_->Take(begin_ns, chunk->bytes);
        free_at_ns_ = std::max(shared.begin_ns + passes_ns, shared.end_ns);
      }
      busy_ns_ += passes_ns;
      now_ns += chunk_start_ns_;
      starter_free_at_ns_ = now_ns;
      copied_at_ns_ = std::max(copied_at_ns_, now_ns) + chunk_copy_ns_;
      in_flight_.push_back({*chunk, std::max(free_at_ns_ + latency_ns_, copied_at_ns_)});
    }
    return now_ns;
  }
  int64_t NextArrivalNs() const { return in_flight_.empty() ? kNever : in_flight_.front().at_ns; }
  Chunk TakeArrival() {
    const Chunk chunk = in_flight_.front().chunk;
    in_flight_.pop_front();
    return chunk;
  }

 private:
  struct InFlight {
    Chunk chunk;
    int64_t at_ns = 0;
  };
  // Most chunks have the size of the one before, and the division is slow.
  int64_t PassesNs(uint64_t bytes) {
    if (bytes != known_bytes_) {
      __extension__ using Wide = unsigned __int128;
      known_bytes_ = bytes;
      known_ns_ = static_cast<int64_t>((Wide{bytes} * 1'000'000'000 + bytes_per_second_ - 1) /
                                       bytes_per_second_);
    }
    return known_ns_;
  }

  TransferQueue queue_;
  SharedLink* const shared_;
  uint64_t bytes_per_second_;
  uint64_t known_bytes_ = 0;
  int64_t known_ns_ = 0;
  const int64_t latency_ns_;
  const int64_t chunk_prepare_ns_;
  const int64_t chunk_start_ns_;
  const int64_t chunk_copy_ns_;
  int64_t free_at_ns_ = 0;
  int64_t starter_free_at_ns_ = 0;
  int64_t copied_at_ns_ = 0;
  int64_t busy_ns_ = 0;
  std::deque<InFlight> in_flight_;
};

ExpertPolicyOptions PolicyOptions(const RoutingTrace& trace, const Lockstep& lockstep,
                                  const DeviceSimOptions& options) {
  ExpertPolicyOptions policy;
  policy.cache.experts = trace.experts;
  policy.cache.block_bytes = options.block_bytes;
  if (options.block_bytes.empty()) {
    policy.cache.block_bytes.assign(static_cast<size_t>(lockstep.base.back()),
                                    options.expert_bytes);
  }
  policy.cache.slot_class = options.slot_class;
  policy.cache.top_k = trace.top_k;
  policy.cache.slots = options.slots;
  policy.cache.ranking = options.ranks == CacheRanks::kOwn       ? CacheRanking::kGuarded
                         : options.ranks == CacheRanks::kRecency ? CacheRanking::kRecency
                                                                 : CacheRanking::kNextUse;
  policy.prefetch = options.prefetch;
  policy.prefetch.enabled = options.stride != nullptr;
  policy.sequences_max = static_cast<size_t>(lockstep.batch);
  policy.forecaster = options.forecaster;
  return policy;
}

int32_t SlotsInAll(const DeviceSimOptions& options) {
  return std::accumulate(options.slots.begin(), options.slots.end(), 0);
}

TransferQueueOptions QueueOptions(const DeviceSimOptions& options) {
  TransferQueueOptions queue = options.queue;
  queue.max_jobs = SlotsInAll(options) + options.stream_buffers;
  return queue;
}

}  // namespace

class SimulatedDevice::Impl {
 public:
  Impl(const RoutingTrace& trace, const Lockstep& lockstep, const ComputeTimes& compute,
       DeviceSimOptions options, SharedLink* shared)
      : trace_(trace),
        lockstep_(lockstep),
        compute_(compute),
        options_(std::move(options)),
        policy_{PolicyOptions(trace, lockstep, options_), options_.stride != nullptr
                                                              ? std::move(options_.stride)
                                                              : std::make_unique<FixedStride>(0)},
        link_(QueueOptions(options_), options_, shared),
        jobs_(static_cast<size_t>(SlotsInAll(options_) + options_.stream_buffers)),
        slot_copy_(static_cast<size_t>(SlotsInAll(options_))),
        buffers_free_(options_.stream_buffers),
        lane_sequence_(static_cast<size_t>(lockstep.batch)),
        lane_tokens_(static_cast<size_t>(lockstep.batch)) {
    if (options_.ranks == CacheRanks::kOracle) {
      next_uses_ = NextUses(lockstep);
      next_event_.assign(static_cast<size_t>(lockstep.base.back()),
                         static_cast<uint32_t>(lockstep.events()));
    }
    if (options_.ranks == CacheRanks::kOracle || options_.ranks == CacheRanks::kPinned) {
      distance_.assign(static_cast<size_t>(lockstep.base.back()), UINT32_MAX);
    }
    if (options_.ranks == CacheRanks::kPinned) Pin();
  }

  void BeginStep(size_t step);
  bool RunLayer();
  void WaitUntil(int64_t ns) {
    now_ns_ = std::max(now_ns_, ns);
    Advance(now_ns_);
  }
  int64_t now_ns() const { return now_ns_; }
  Status CheckInvariants() const {
    RETURN_IF_ERROR(policy_.CheckInvariants());
    return link_.queue().CheckInvariants();
  }
  DeviceSimResult result() const;

 private:
  struct Job {  // by CopyId::index
    CopyRequest request;
    SlotRef slot;  // not valid: a streaming buffer
    int32_t demand = -1;
    int64_t asked_ns = 0;  // when compute came to need it
  };

  void Pin();
  void RunMoe(size_t step, int32_t layer, std::span<const Lockstep::Row> rows);
  void RankByTheTruth(size_t event);
  void Prefetch(size_t step, int32_t layer);
  void Load(ExpertKey key, SlotRef slot, CopyKind kind, const PlannedPrefetch& plan,
            int32_t demand);
  void StartBypasses(int32_t layer);
  void RunArrivals(int32_t layer);
  // Lets the link work until `until_ns`.
  void Advance(int64_t until_ns);
  void OnEnd(CopyId copy, const CopyEnd& end);
  void Cancel(SlotRef slot);

  const RoutingTrace& trace_;
  const Lockstep& lockstep_;
  const ComputeTimes& compute_;
  DeviceSimOptions options_;
  ExpertPolicy policy_;
  SimLink link_;
  std::vector<Job> jobs_;
  std::vector<CopyId> slot_copy_;
  int32_t buffers_free_;

  int64_t now_ns_ = 0;
  // Of the current step.
  size_t step_ = 0;
  int32_t layer_ = 0;  // the next
  int64_t context_ = 0;
  int32_t sampled_ = 0;
  int64_t step_begin_ns_ = 0;
  int64_t stall_before_ns_ = 0;
  size_t next_change_ = 0;
  // Of the current event.
  std::vector<LayerDemand> demands_;
  std::vector<RoutedRow> routed_;
  std::vector<uint32_t> probability_ppm_;
  std::vector<int32_t> bypass_;  // demands that wait for a buffer, from bypass_next_
  size_t bypass_next_ = 0;
  std::vector<int32_t> arrived_;
  std::vector<uint8_t> through_buffer_;  // by demand
  int32_t pending_ = 0;

  int64_t layer_stall_ns_ = 0;
  int64_t link_busy_before_ns_ = 0;
  uint64_t bytes_before_ = 0;

  std::vector<SequenceId> lane_sequence_;
  std::vector<int64_t> lane_tokens_;
  uint64_t sequences_ = 0;
  // Ranks from outside, by expert numbered through.
  std::vector<uint32_t> distance_;
  std::vector<uint32_t> next_uses_;
  std::vector<uint32_t> next_event_;

  DeviceSimResult result_;
};

void SimulatedDevice::Impl::Pin() {
  std::vector<int32_t> order(distance_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto uses = [&](int32_t e) {
    const auto i = static_cast<size_t>(e);
    return i < options_.training_uses.size() ? options_.training_uses[i] : 0;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return uses(a) > uses(b); });
  std::vector<int32_t> left = options_.slots;
  std::erase_if(order, [&](int32_t e) {
    const size_t c = options_.slot_class.empty() ? 0 : options_.slot_class[static_cast<size_t>(e)];
    return left[c]-- <= 0;
  });
  int32_t layer = 0;
  std::sort(order.begin(), order.end());
  for (const int32_t e : order) {
    while (e >= lockstep_.base[static_cast<size_t>(layer) + 1]) ++layer;
    distance_[static_cast<size_t>(e)] = 0;
    const ExpertKey key{LayerId(layer), ExpertId(e - lockstep_.base[static_cast<size_t>(layer)])};
    const PrefetchDecision decision = policy_.cache().TryPrefetch(key, 1);
    policy_.cache().OnLoaded(decision.slot);
  }
  policy_.cache().UseForecast(distance_);
}

void SimulatedDevice::Impl::RankByTheTruth(size_t event) {
  const auto layers = static_cast<uint64_t>(lockstep_.layers);
  const size_t begin = lockstep_.event_begin[event];
  const std::span<const int32_t> experts = lockstep_.ExpertsOf(event);
  for (size_t i = 0; i < experts.size(); ++i) {
    next_event_[static_cast<size_t>(experts[i])] = next_uses_[begin + i];
  }
  for (size_t e = 0; e < distance_.size(); ++e) {
    const bool again = next_event_[e] < lockstep_.events();
    const uint64_t steps = uint64_t{next_event_[e] - event} * kDistanceUnit / layers;
    distance_[e] =
        again ? static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)) : UINT32_MAX;
  }
  policy_.cache().UseForecast(distance_);
}

void SimulatedDevice::Impl::Load(ExpertKey key, SlotRef slot, CopyKind kind,
                                 const PlannedPrefetch& plan, int32_t demand) {
  const CopyRequest request = {key, kind, policy_.cache().BlockBytes(key), plan.probability_ppm,
                               plan.deadline};
  const CopyId copy = link_.queue().Enqueue(request);
  CHECK(copy.valid());
  jobs_[static_cast<size_t>(copy.index)] = {request, slot, demand, now_ns_};
  if (slot.valid()) slot_copy_[slot.slot.index()] = copy;
}

void SimulatedDevice::Impl::StartBypasses(int32_t layer) {
  while (buffers_free_ > 0 && bypass_next_ < bypass_.size()) {
    const int32_t demand = bypass_[bypass_next_++];
    --buffers_free_;
    through_buffer_[static_cast<size_t>(demand)] = 1;
    Load({LayerId(layer), demands_[static_cast<size_t>(demand)].expert}, {}, CopyKind::kDemand, {},
         demand);
  }
}

void SimulatedDevice::Impl::Cancel(SlotRef slot) {
  const CopyId copy = slot_copy_[slot.slot.index()];
  const CopyEnd end = link_.queue().Cancel(copy);
  if (end.state != CopyState::kActive) OnEnd(copy, end);
}

void SimulatedDevice::Impl::OnEnd(CopyId copy, const CopyEnd& end) {
  Job& job = jobs_[static_cast<size_t>(copy.index)];
  if (!job.slot.valid()) {
    CHECK(end.state == CopyState::kDone);
  } else if (end.state == CopyState::kDone) {
    policy_.cache().OnLoaded(job.slot);
  } else if (policy_.cache().IsSpeculative(job.slot)) {
    policy_.cache().OnPrefetchCancelled(job.slot, end.bytes_arrived);
  } else {
    // Asked for after it was cancelled and before its last chunk came back: once more.
    const Job again = job;
    Load(again.request.key, again.slot, CopyKind::kDemand, {}, again.demand);
    return;
  }
  if (job.demand < 0) return;
  arrived_.push_back(std::exchange(job.demand, -1));
}

void SimulatedDevice::Impl::Advance(int64_t until_ns) {
  while (link_.NextArrivalNs() <= until_ns) {
    const int64_t at_ns = link_.NextArrivalNs();
    const Chunk chunk = link_.TakeArrival();
    const int64_t asked_ns = jobs_[static_cast<size_t>(chunk.copy.index)].asked_ns;
    const bool awaited = jobs_[static_cast<size_t>(chunk.copy.index)].demand >= 0;
    const CopyEnd end = link_.queue().OnChunkDone(chunk, true);
    if (end.state != CopyState::kActive) {
      if (awaited && end.state == CopyState::kDone) result_.arrival_wait_ns += at_ns - asked_ns;
      OnEnd(chunk.copy, end);
    }
    link_.Start(at_ns);
  }
}

void SimulatedDevice::Impl::Prefetch(size_t step, int32_t layer) {
  const int32_t lookahead = policy_.lookahead();
  if (lookahead == 0) return;
  now_ns_ += options_.prediction_ns;
  for (int32_t target = layer + 1; target < lockstep_.layers && target <= layer + lookahead;
       ++target) {
    probability_ppm_.assign(static_cast<size_t>(trace_.experts[static_cast<size_t>(target)]), 0);
    options_.predictions->Predict(step, target, target - layer, probability_ppm_);
    for (const PrefetchLoad& load : policy_.Prefetch(LayerId(target), probability_ppm_)) {
      Load(load.plan.key, load.slot, CopyKind::kPrefetch, load.plan, -1);
    }
  }
}

void SimulatedDevice::Impl::RunArrivals(int32_t layer) {
  bool waited = false;
  while (pending_ > 0) {
    Advance(now_ns_);
    if (arrived_.empty()) {
      const int64_t next_ns = link_.NextArrivalNs();
      CHECK(next_ns != kNever);
      layer_stall_ns_ += next_ns - now_ns_;
      now_ns_ = next_ns;
      waited = true;
      continue;
    }
    if (std::exchange(waited, false)) {
      ++result_.waits;
      layer_stall_ns_ += options_.wake_ns;
      now_ns_ += options_.wake_ns;
    }
    // While others wait for a buffer, those in buffers go one at a time.
    int32_t experts = 0;
    int32_t rows = 0;
    int32_t buffers = 0;
    size_t kept = 0;
    for (const int32_t demand : arrived_) {
      const auto i = static_cast<size_t>(demand);
      const bool buffer = through_buffer_[i] != 0;
      if (buffer && buffers > 0 && bypass_next_ < bypass_.size()) {
        arrived_[kept++] = demand;
        continue;
      }
      buffers += buffer ? 1 : 0;
      ++experts;
      rows += demands_[i].decode_rows + demands_[i].prefill_rows;
    }
    arrived_.resize(kept);
    now_ns_ += options_.arrival_ns * experts;
    now_ns_ += compute_.ExpertsNs(layer, experts, rows);
    Advance(now_ns_);
    pending_ -= experts;
    buffers_free_ += buffers;
    StartBypasses(layer);
    now_ns_ = link_.Start(now_ns_);
  }
}

void SimulatedDevice::Impl::RunMoe(size_t step, int32_t layer,
                                   std::span<const Lockstep::Row> rows) {
  const size_t event = step * static_cast<size_t>(lockstep_.layers) + static_cast<size_t>(layer);
  const std::span<const int32_t> experts = lockstep_.ExpertsOf(event);
  const std::span<const int32_t> users = lockstep_.UsersOf(event);
  const int64_t begin_ns = now_ns_;
  layer_stall_ns_ = 0;
  now_ns_ += compute_.BeforeExpertsNs(layer, static_cast<int32_t>(rows.size()), context_);
  demands_.clear();
  int32_t decoded = 0;  // experts
  for (size_t i = 0; i < experts.size(); ++i) {
    const int32_t expert = experts[i] - lockstep_.base[static_cast<size_t>(layer)];
    demands_.push_back({ExpertId(expert), users[i], lockstep_.PrefillUsersOf(event, i)});
    decoded += users[i] > 0 ? 1 : 0;
  }
  if (policy_.has_forecaster()) {
    routed_.clear();
    for (const Lockstep::Row& row : rows) {
      routed_.push_back({lane_sequence_[static_cast<size_t>(row.lane)],
                         row.prefill,
                         {trace_.ChosenAt(row.row, layer), trace_.WeightsAt(row.row, layer)}});
    }
    policy_.Observe(LayerId(layer), routed_, decoded);
  }
  Advance(now_ns_);
  for (const SlotRef slot : policy_.Begin(LayerId(layer), demands_)) Cancel(slot);
  if (decoded > 0) link_.queue().OpenWindow();
  if (options_.ranks == CacheRanks::kOracle) RankByTheTruth(event);
  const std::span<const DemandDecision> decisions = policy_.Decide();
  arrived_.clear();
  bypass_.clear();
  bypass_next_ = 0;
  pending_ = 0;
  through_buffer_.assign(demands_.size(), 0);
  int32_t ready = 0;
  int32_t ready_rows = 0;
  const bool ranks = std::any_of(decisions.begin(), decisions.end(), [](const DemandDecision& d) {
    return d.victim.layer.valid() || d.outcome == DemandOutcome::kBypass;
  });
  if (ranks) now_ns_ += options_.ranking_ns;
  for (size_t i = 0; i < decisions.size(); ++i) {
    const DemandDecision& d = decisions[i];
    const auto demand = static_cast<int32_t>(i);
    if (d.outcome == DemandOutcome::kHit) {
      ++ready;
      ready_rows += demands_[i].decode_rows + demands_[i].prefill_rows;
      continue;
    }
    ++pending_;
    if (d.outcome == DemandOutcome::kBypass) {
      bypass_.push_back(demand);
    } else if (d.outcome == DemandOutcome::kLoad) {
      Load(d.key, d.slot, CopyKind::kDemand, {}, demand);
    } else {
      const CopyId copy = slot_copy_[d.slot.slot.index()];
      link_.queue().Promote(copy);
      jobs_[static_cast<size_t>(copy.index)].demand = demand;
      jobs_[static_cast<size_t>(copy.index)].asked_ns = now_ns_;
    }
  }
  StartBypasses(layer);
  // With nothing to run, starting copies is part of waiting for them.
  const int64_t decided_ns = now_ns_;
  now_ns_ = link_.Start(now_ns_);
  if (ready == 0) layer_stall_ns_ += now_ns_ - decided_ns;
  if (decoded > 0) Prefetch(step, layer);
  now_ns_ = link_.Start(now_ns_);
  if (ready > 0) now_ns_ += compute_.ExpertsNs(layer, ready, ready_rows);
  RunArrivals(layer);
  if (options_.predictions != nullptr) options_.predictions->Observe(step, layer);

  const TransferQueueStats& link = link_.queue().stats();
  const uint64_t bytes = link.demand_bytes + link.prefetch_bytes;
  EventTimes times;
  times.layer_ns = now_ns_ - begin_ns;
  times.stall_ns = layer_stall_ns_;
  times.link_busy_ns = link_.busy_ns() - link_busy_before_ns_;
  times.bytes_copied = bytes - bytes_before_;
  link_busy_before_ns_ = link_.busy_ns();
  bytes_before_ = bytes;
  policy_.End(times);
  result_.stall_ns += layer_stall_ns_;
  ++result_.events;
}

void SimulatedDevice::Impl::BeginStep(size_t step) {
  CHECK(step < lockstep_.steps());
  step_ = step;
  layer_ = 0;
  while (next_change_ < options_.link_changes.size() &&
         options_.link_changes[next_change_].step <= step) {
    link_.SetRate(options_.link_changes[next_change_++].bytes_per_second);
  }
  context_ = 0;
  sampled_ = 0;
  for (const Lockstep::Row& row : lockstep_.RowsOf(step)) {
    const auto lane = static_cast<size_t>(row.lane);
    if (row.first) {
      lane_sequence_[lane] = SequenceId{++sequences_};
      lane_tokens_[lane] = 0;
    }
    context_ += ++lane_tokens_[lane];
    ++(row.prefill ? result_.prefill_tokens : result_.tokens);
    sampled_ += row.sampled ? 1 : 0;
  }
  const int32_t stride = policy_.stride().stride();
  if (result_.strides.empty() || result_.strides.back().stride != stride) {
    result_.strides.push_back({result_.steps, stride});
  }
  step_begin_ns_ = now_ns_;
  stall_before_ns_ = result_.stall_ns;
}

bool SimulatedDevice::Impl::RunLayer() {
  RunMoe(step_, layer_, lockstep_.RowsOf(step_));
  if (++layer_ < lockstep_.layers) return true;
  now_ns_ += compute_.StepEndNs(sampled_);
  ++result_.steps;
  result_.step_ns.push_back(now_ns_ - step_begin_ns_);
  result_.step_stall_ns.push_back(result_.stall_ns - stall_before_ns_);
  return false;
}

DeviceSimResult SimulatedDevice::Impl::result() const {
  DeviceSimResult result = result_;
  const ExpertCacheStats& cache = policy_.cache().stats();
  result.total_ns = now_ns_;
  result.link_busy_ns = link_.busy_ns();
  result.hits = cache.hits;
  result.late_hits = cache.late_hits;
  result.misses = cache.misses;
  result.bypasses = cache.bypasses;
  result.bytes_demand = link_.queue().stats().demand_bytes;
  result.bytes_prefetch = link_.queue().stats().prefetch_bytes;
  result.bytes_wasted = cache.bytes_wasted;
  result.bytes_regret = cache.bytes_regret;
  result.prefetch_switch_offs = policy_.planner().stats().switch_offs;
  Digest digest;
  result.cache_digest = policy_.cache().digest();
  digest.Fold(result.cache_digest);
  digest.Fold(policy_.planner().digest());
  digest.Fold(link_.queue().digest());
  result.digest = digest.value();
  return result;
}

namespace {

DeviceSimOptions Settled(const RoutingTrace& trace, DeviceSimOptions options) {
  CHECK(options.stride == nullptr || options.predictions != nullptr);
  CHECK(options.stream_buffers > 0);
  CHECK(options.expert_bytes > 0 || !options.block_bytes.empty());
  CHECK(options.link_bytes_per_second > 0);
  if (!options.keeps_experts) {
    // As many buffers as a layer may need: an expert stays for its own layer only.
    options.stream_buffers =
        std::max(options.stream_buffers, std::min(SlotsInAll(options), trace.top_k));
    options.slots.assign(options.slots.size(), 0);
  }
  return options;
}

}  // namespace

SimulatedDevice::SimulatedDevice(const RoutingTrace& trace, const Lockstep& lockstep,
                                 const ComputeTimes& compute, DeviceSimOptions options,
                                 SharedLink* shared)
    : impl_(std::make_unique<Impl>(trace, lockstep, compute, Settled(trace, std::move(options)),
                                   shared)) {}
SimulatedDevice::~SimulatedDevice() = default;
void SimulatedDevice::BeginStep(size_t step) {
  impl_->BeginStep(step);
}
bool SimulatedDevice::RunLayer() {
  return impl_->RunLayer();
}
void SimulatedDevice::WaitUntil(int64_t ns) {
  impl_->WaitUntil(ns);
}
int64_t SimulatedDevice::now_ns() const {
  return impl_->now_ns();
}
Status SimulatedDevice::CheckInvariants() const {
  return impl_->CheckInvariants();
}
DeviceSimResult SimulatedDevice::result() const {
  return impl_->result();
}

Result<DeviceSimResult> SimulateDevice(const RoutingTrace& trace, const Lockstep& lockstep,
                                       const ComputeTimes& compute, DeviceSimOptions options) {
  const bool checks = options.check_invariants;
  SimulatedDevice device(trace, lockstep, compute, std::move(options));
  for (size_t step = 0; step < lockstep.steps(); ++step) {
    device.BeginStep(step);
    while (device.RunLayer()) {
    }
    if (checks) RETURN_IF_ERROR(device.CheckInvariants());
  }
  return device.result();
}

}  // namespace expertflow
