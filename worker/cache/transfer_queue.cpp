#include "worker/cache/transfer_queue.h"

#include <algorithm>
#include <string>

#include "common/check.h"

namespace expertflow {

TransferQueue::TransferQueue(TransferQueueOptions options)
    : options_(options), window_left_(options.speculative_bytes_per_window) {
  CHECK(options_.max_jobs >= 0 && options_.chunk_bytes > 0 && options_.max_outstanding_chunks > 0);
  jobs_.resize(static_cast<size_t>(options_.max_jobs));
}

CopyId TransferQueue::Enqueue(const CopyRequest& request) {
  CHECK(request.bytes > 0);
  if (active_ == options_.max_jobs) {
    ++stats_.rejected;
    digest_.Fold(uint64_t{1} << 56);
    return {};
  }
  size_t index = 0;
  while (jobs_[index].active) ++index;
  Job& job = jobs_[index];
  const uint32_t generation = job.generation + 1;
  job = Job{};
  job.active = true;
  job.generation = generation;
  job.request = request;
  job.sequence = next_sequence_++;
  ++active_;
  high_water_ = std::max(high_water_, static_cast<int32_t>(index) + 1);
  digest_.Fold(uint64_t{2} << 56 | static_cast<uint64_t>(request.kind) << 48 | index);
  return {static_cast<int32_t>(index), generation};
}

TransferQueue::Job& TransferQueue::Get(CopyId copy) {
  CHECK(copy.valid() && copy.index < options_.max_jobs);
  Job& job = jobs_[static_cast<size_t>(copy.index)];
  CHECK(job.active && job.generation == copy.generation);
  return job;
}

void TransferQueue::Promote(CopyId copy) {
  Job& job = Get(copy);
  if (job.request.kind == CopyKind::kDemand) return;
  job.request.kind = CopyKind::kDemand;
  job.sequence = next_sequence_++;
  ++stats_.promotions;
  digest_.Fold(uint64_t{3} << 56 | static_cast<uint64_t>(copy.index));
}

CopyEnd TransferQueue::Cancel(CopyId copy) {
  Job& job = Get(copy);
  job.cancelled = true;
  digest_.Fold(uint64_t{4} << 56 | static_cast<uint64_t>(copy.index));
  if (job.outstanding > 0) return {CopyState::kActive, job.arrived};
  return Finish(job, CopyState::kCancelled);
}

void TransferQueue::OpenWindow() {
  window_left_ = options_.speculative_bytes_per_window;
}

bool TransferQueue::Before(const Job& a, const Job& b) const {
  if (a.request.kind != b.request.kind) return a.request.kind == CopyKind::kDemand;
  if (a.request.kind == CopyKind::kDemand) return a.sequence < b.sequence;
  // probability / remaining bytes, compared without division
  __extension__ using Wide = unsigned __int128;
  const Wide left = Wide{a.request.probability_ppm} * (b.request.bytes - b.issued);
  const Wide right = Wide{b.request.probability_ppm} * (a.request.bytes - a.issued);
  if (left != right) return left > right;
  if (a.request.deadline != b.request.deadline) return a.request.deadline < b.request.deadline;
  if (a.request.key != b.request.key) return a.request.key < b.request.key;
  return a.sequence < b.sequence;
}

int32_t TransferQueue::Pick() const {
  int32_t best = -1;
  for (int32_t i = 0; i < high_water_; ++i) {
    const Job& job = jobs_[static_cast<size_t>(i)];
    if (!job.active || job.cancelled || job.failed || job.issued == job.request.bytes) continue;
    if (job.request.kind == CopyKind::kPrefetch && window_left_ == 0) continue;
    if (best < 0 || Before(job, jobs_[static_cast<size_t>(best)])) best = i;
  }
  return best;
}

bool TransferQueue::MayGiveOut() const {
  constexpr int32_t kChunksOfAnySize = 2;
  if (outstanding_ >= options_.max_outstanding_chunks) return false;
  return outstanding_ < kChunksOfAnySize || outstanding_bytes_ < options_.small_outstanding_bytes;
}

uint64_t TransferQueue::ChunkBytes(const Job& job) const {
  return std::min(options_.chunk_bytes, job.request.bytes - job.issued);
}

uint64_t TransferQueue::NextChunkBytes() const {
  const int32_t index = MayGiveOut() ? Pick() : -1;
  return index < 0 ? 0 : ChunkBytes(jobs_[static_cast<size_t>(index)]);
}

std::optional<Chunk> TransferQueue::NextChunk() {
  if (!MayGiveOut()) return std::nullopt;
  const int32_t index = Pick();
  if (index < 0) return std::nullopt;
  Job& job = jobs_[static_cast<size_t>(index)];
  Chunk chunk;
  chunk.copy = {index, job.generation};
  chunk.offset = job.issued;
  chunk.bytes = ChunkBytes(job);
  chunk.first = job.issued == 0;
  job.issued += chunk.bytes;
  chunk.last = job.issued == job.request.bytes;
  ++job.outstanding;
  ++outstanding_;
  outstanding_bytes_ += chunk.bytes;
  ++stats_.chunks;
  // The budget may be overrun by a part of one chunk, never by a whole one.
  if (job.request.kind == CopyKind::kPrefetch) window_left_ -= std::min(window_left_, chunk.bytes);
  digest_.Fold(uint64_t{5} << 56 | static_cast<uint64_t>(index) << 40 |
               (chunk.offset & 0xffffffffff));
  return chunk;
}

CopyEnd TransferQueue::OnChunkDone(const Chunk& chunk, bool ok) {
  Job& job = Get(chunk.copy);
  CHECK(job.outstanding > 0);
  --job.outstanding;
  --outstanding_;
  outstanding_bytes_ -= chunk.bytes;
  digest_.Fold(uint64_t{6} << 56 | static_cast<uint64_t>(chunk.copy.index) << 8 | (ok ? 1 : 0));
  if (ok) {
    job.arrived += chunk.bytes;
    (job.request.kind == CopyKind::kDemand ? stats_.demand_bytes : stats_.prefetch_bytes) +=
        chunk.bytes;
  } else {
    job.failed = true;
  }
  if (job.outstanding > 0) return {CopyState::kActive, job.arrived};
  if (job.failed) return Finish(job, CopyState::kFailed);
  if (job.arrived == job.request.bytes) return Finish(job, CopyState::kDone);
  if (job.cancelled) return Finish(job, CopyState::kCancelled);
  return {CopyState::kActive, job.arrived};
}

CopyEnd TransferQueue::Finish(Job& job, CopyState state) {
  if (state == CopyState::kCancelled) ++stats_.cancelled;
  if (state == CopyState::kFailed) ++stats_.failed;
  job.active = false;
  --active_;
  while (high_water_ > 0 && !jobs_[static_cast<size_t>(high_water_ - 1)].active) --high_water_;
  return {state, job.arrived};
}

uint64_t TransferQueue::BytesQueued(CopyKind kind) const {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < high_water_; ++i) {
    const Job& job = jobs_[static_cast<size_t>(i)];
    if (!job.active || job.cancelled || job.failed || job.request.kind != kind) continue;
    bytes += job.request.bytes - job.issued;
  }
  return bytes;
}

Status TransferQueue::CheckInvariants() const {
  int32_t active = 0;
  int32_t outstanding = 0;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    if (!job.active) continue;
    ++active;
    outstanding += job.outstanding;
    const std::string name = "copy " + std::to_string(i) + ": ";
    if (static_cast<int32_t>(i) >= high_water_) return Internal(name + "past the high-water mark");
    if (job.arrived > job.issued || job.issued > job.request.bytes) {
      return Internal(name + "arrived <= issued <= size does not hold");
    }
    if (job.outstanding == 0 && (job.cancelled || job.failed || job.arrived < job.issued)) {
      return Internal(name + "ended, but still active");
    }
  }
  if (active != active_) return Internal("count of copies is off");
  if (outstanding != outstanding_ || outstanding > options_.max_outstanding_chunks) {
    return Internal("count of outstanding chunks is off");
  }
  return OkStatus();
}

}  // namespace expertflow
