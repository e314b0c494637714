// Which bytes go over the link next: a queue of chunked expert copies. A pure policy; the driver
// (worker/transfer_engine.h) moves one chunk at a time and reports it. Strict order: demand first,
// in the order asked; then speculation by expected benefit per byte still to come, then by
// deadline. A copy cannot be interrupted, so copies are cut into chunks: demand waits for at most
// the chunks that are outstanding.
//
// Chunks that are out keep the link busy while reports are on their way: two of any size, and more
// while they are so small that together they hardly delay demand.
//
// Speculation has a byte budget per window; the driver opens a window per layer. A job is cancelled
// at the next chunk border. Single-threaded: the driver serialises all calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"

namespace expertflow {

enum class CopyKind : uint8_t { kDemand, kPrefetch };

struct TransferQueueOptions {
  int32_t max_jobs = 0;  // enqueued and not finished
  // Given out and not reported: two, or more while fewer bytes than `small_outstanding_bytes` are
  // out, and never more than the maximum.
  int32_t max_outstanding_chunks = 16;
  uint64_t small_outstanding_bytes = 128 * 1024;
  uint64_t chunk_bytes = 512 * 1024;
  uint64_t speculative_bytes_per_window = UINT64_MAX;
};

// Index + generation.
struct CopyId {
  int32_t index = -1;
  uint32_t generation = 0;
  bool valid() const { return index >= 0; }
  friend bool operator==(const CopyId&, const CopyId&) = default;
};

struct CopyRequest {
  ExpertKey key;
  CopyKind kind = CopyKind::kDemand;
  uint64_t bytes = 0;
  uint32_t probability_ppm = 0;  // kPrefetch: of being used
  uint64_t deadline = 0;         // kPrefetch: order of need, e.g. a count of layers
};

struct Chunk {
  CopyId copy;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool first = false;
  bool last = false;
};

// What became of a job.
enum class CopyState : uint8_t {
  kActive,     // more chunks to come
  kDone,       // all bytes arrived
  kCancelled,  // ended by Cancel()
  kFailed,     // ended by a failed chunk
};

struct CopyEnd {
  CopyState state = CopyState::kActive;
  uint64_t bytes_arrived = 0;
};

struct TransferQueueStats {
  uint64_t demand_bytes = 0;  // arrived, counted by what the job was when the chunk was given out
  uint64_t prefetch_bytes = 0;
  uint64_t chunks = 0;
  uint64_t promotions = 0;
  uint64_t cancelled = 0;
  uint64_t failed = 0;
  uint64_t rejected = 0;  // queue full
};

class TransferQueue {
 public:
  // REQUIRES: max_jobs >= 0; chunk_bytes, max_outstanding_chunks > 0
  explicit TransferQueue(TransferQueueOptions options);

  // Not valid when the queue is full. REQUIRES: request.bytes > 0
  CopyId Enqueue(const CopyRequest& request);
  // The router confirmed a prefetch: it goes on as demand, after the demand already queued.
  void Promote(CopyId copy);
  // Drops the remaining chunks. kCancelled: the job is over now. kActive: a chunk is outstanding,
  // its report ends the job.
  CopyEnd Cancel(CopyId copy);
  // A new window of speculation begins: its budget is whole again.
  void OpenWindow();

  // The next chunk to copy. None: nothing to do, out of budget, or too many outstanding.
  std::optional<Chunk> NextChunk();
  // Any state but kActive ends the job and its id. Chunks may be reported in any order.
  CopyEnd OnChunkDone(const Chunk& chunk, bool ok);

  // True when NextChunk() would give one.
  bool HasWork() const { return MayGiveOut() && Pick() >= 0; }
  // Bytes of the chunk that NextChunk() would give; 0: none.
  uint64_t NextChunkBytes() const;
  int32_t outstanding_chunks() const { return outstanding_; }
  int32_t jobs() const { return active_; }
  // Bytes not yet given out.
  uint64_t BytesQueued(CopyKind kind) const;
  const TransferQueueStats& stats() const { return stats_; }

  Status CheckInvariants() const;
  uint64_t digest() const { return digest_.value(); }

 private:
  struct Job {
    bool active = false;
    bool cancelled = false;
    bool failed = false;
    uint32_t generation = 0;
    CopyRequest request;
    uint64_t sequence = 0;  // order of being asked for
    uint64_t issued = 0;    // bytes given out
    uint64_t arrived = 0;
    int32_t outstanding = 0;

    // Has bytes to give out.
    bool Waits() const { return issued < request.bytes && !cancelled && !failed; }
  };

  bool MayGiveOut() const;
  // The job whose bytes go next; -1: none may.
  int32_t Pick() const;
  // Of the jobs that have bytes to give out; Remove() before their order changes.
  void AddWaiting(int32_t index);
  void RemoveWaiting(int32_t index);
  // The one that Pick() finds.
  void DropNext();
  uint64_t ChunkBytes(const Job& job) const;
  // Of two prefetches.
  static bool Before(const Job& a, const Job& b);
  // The order of speculation_, for the library's heap.
  auto Later() const {
    return [this](int32_t a, int32_t b) {
      return Before(jobs_[static_cast<size_t>(b)], jobs_[static_cast<size_t>(a)]);
    };
  }
  Job& Get(CopyId copy);
  Status CheckWaiting(const Job& job, int32_t index) const;
  CopyEnd Finish(Job& job, CopyState state);

  TransferQueueOptions options_;
  std::vector<Job> jobs_;
  int32_t active_ = 0;
  int32_t free_hint_ = 0;  // no free entry below this one
  // Jobs with bytes to give out: demand in its order, speculation as a heap with the next on top.
  std::deque<int32_t> demand_;
  std::vector<int32_t> speculation_;
  int32_t outstanding_ = 0;
  uint64_t outstanding_bytes_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t window_left_ = 0;
  TransferQueueStats stats_;
  Digest digest_;
};

}  // namespace expertflow
