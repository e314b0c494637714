#include "worker/cache/transfer_queue.h"

#include <algorithm>
#include <string>

#include "common/check.h"

namespace expertflow {

TransferQueue::TransferQueue(TransferQueueOptions options)
    : options_(options), window_left_(options.speculative_bytes_per_window) {
  CHECK(options_.max_jobs >= 0 && options_.chunk_bytes > 0 && options_.max_outstanding_chunks > 0);
  jobs_.resize(static_cast<size_t>(options_.max_jobs));
  speculation_.reserve(jobs_.size());
}

CopyId TransferQueue::Enqueue(const CopyRequest& request) {
  CHECK(request.bytes > 0);
  if (active_ == options_.max_jobs) {
    ++stats_.rejected;
    digest_.Fold(uint64_t{1} << 56);
    return {};
  }
  auto index = static_cast<size_t>(free_hint_);
  while (jobs_[index].active) ++index;
  free_hint_ = static_cast<int32_t>(index) + 1;
  Job& job = jobs_[index];
  const uint32_t generation = job.generation + 1;
  job = Job{};
  job.active = true;
  job.generation = generation;
  job.request = request;
  job.sequence = next_sequence_++;
  ++active_;
  AddWaiting(static_cast<int32_t>(index));
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
  RemoveWaiting(copy.index);
  job.request.kind = CopyKind::kDemand;
  job.sequence = next_sequence_++;
  if (job.Waits()) AddWaiting(copy.index);
  ++stats_.promotions;
  digest_.Fold(uint64_t{3} << 56 | static_cast<uint64_t>(copy.index));
}

CopyEnd TransferQueue::Cancel(CopyId copy) {
  Job& job = Get(copy);
  RemoveWaiting(copy.index);
  job.cancelled = true;
  digest_.Fold(uint64_t{4} << 56 | static_cast<uint64_t>(copy.index));
  if (job.outstanding > 0) return {CopyState::kActive, job.arrived};
  return Finish(job, CopyState::kCancelled);
}

void TransferQueue::OpenWindow() {
  window_left_ = options_.speculative_bytes_per_window;
}

bool TransferQueue::Before(const Job& a, const Job& b) {
  // probability / remaining bytes, compared without division
  __extension__ using Wide = unsigned __int128;
  const Wide left = Wide{a.request.probability_ppm} * (b.request.bytes - b.issued);
  const Wide right = Wide{b.request.probability_ppm} * (a.request.bytes - a.issued);
  if (left != right) return left > right;
  if (a.request.deadline != b.request.deadline) return a.request.deadline < b.request.deadline;
  if (a.request.key != b.request.key) return a.request.key < b.request.key;
  return a.sequence < b.sequence;
}

void TransferQueue::AddWaiting(int32_t index) {
  if (jobs_[static_cast<size_t>(index)].request.kind == CopyKind::kDemand) {
    demand_.push_back(index);
    return;
  }
  speculation_.push_back(index);
  std::push_heap(speculation_.begin(), speculation_.end(), Later());
}

void TransferQueue::RemoveWaiting(int32_t index) {
  if (!jobs_[static_cast<size_t>(index)].Waits()) return;
  if (jobs_[static_cast<size_t>(index)].request.kind == CopyKind::kDemand) {
    demand_.erase(std::find(demand_.begin(), demand_.end(), index));
    return;
  }
  if (speculation_.front() == index) {
    std::pop_heap(speculation_.begin(), speculation_.end(), Later());
    speculation_.pop_back();
    return;
  }
  speculation_.erase(std::find(speculation_.begin(), speculation_.end(), index));
  std::make_heap(speculation_.begin(), speculation_.end(), Later());
}

void TransferQueue::DropNext() {
  if (!demand_.empty()) {
    demand_.pop_front();
  } else {
    RemoveWaiting(speculation_.front());
  }
}

int32_t TransferQueue::Pick() const {
  if (!demand_.empty()) return demand_.front();
  return speculation_.empty() || window_left_ == 0 ? -1 : speculation_.front();
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
  chunk.last = chunk.offset + chunk.bytes == job.request.bytes;
  if (chunk.last) DropNext();
  job.issued += chunk.bytes;  // which makes what is left of it more urgent, so it stays on top
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
    RemoveWaiting(chunk.copy.index);
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
  free_hint_ = std::min(free_hint_, static_cast<int32_t>(&job - jobs_.data()));
  return {state, job.arrived};
}

uint64_t TransferQueue::BytesQueued(CopyKind kind) const {
  uint64_t bytes = 0;
  const auto left = [&](int32_t index) {
    const Job& job = jobs_[static_cast<size_t>(index)];
    return job.request.bytes - job.issued;
  };
  if (kind == CopyKind::kDemand) {
    for (const int32_t index : demand_) bytes += left(index);
  } else {
    for (const int32_t index : speculation_) bytes += left(index);
  }
  return bytes;
}

Status TransferQueue::CheckWaiting(const Job& job, int32_t index) const {
  const bool demand = job.request.kind == CopyKind::kDemand;
  const auto asked = std::count(demand_.begin(), demand_.end(), index);
  const auto guessed = std::count(speculation_.begin(), speculation_.end(), index);
  if (asked != (job.Waits() && demand ? 1 : 0) || guessed != (job.Waits() && !demand ? 1 : 0)) {
    return Internal("whether it waits is off");
  }
  if (!job.Waits()) return OkStatus();
  const int32_t next = demand ? demand_.front() : speculation_.front();
  const Job& first = jobs_[static_cast<size_t>(next)];
  if (demand ? job.sequence < first.sequence : Before(job, first)) {
    return Internal("should be the next one");
  }
  return OkStatus();
}

Status TransferQueue::CheckInvariants() const {
  int32_t active = 0;
  int32_t outstanding = 0;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    if (!job.active) {
      if (static_cast<int32_t>(i) < free_hint_) {
        return Internal("copy " + std::to_string(i) + ": free, but hidden");
      }
      continue;
    }
    ++active;
    outstanding += job.outstanding;
    const std::string name = "copy " + std::to_string(i) + ": ";
    RETURN_IF_ERROR(CheckWaiting(job, static_cast<int32_t>(i)).WithContext(name));
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
