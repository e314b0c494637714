// How far the streams of a CPU device are: work runs on the thread that enqueues it, so other
// threads need to see what has begun and what is done. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/clock.h"
#include "device/device.h"

namespace expertflow::cpu {

class StreamProgress {
  struct alignas(64) Counts {
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> done{0};
  };

 public:
  // One piece of work, from construction to destruction.
  class Work {
   public:
    Work(StreamProgress& progress, StreamKind stream) : progress_(progress), stream_(stream) {
      progress_.Begin(stream_);
    }
    ~Work() { progress_.End(stream_); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    StreamProgress& progress_;
    const StreamKind stream_;
  };
  // Work that begins on one thread and ends on another. Of a stream, it ends in its order.
  void Begin(StreamKind stream) { Of(stream).begun.fetch_add(1, std::memory_order_relaxed); }
  void End(StreamKind stream) { Of(stream).done.fetch_add(1, std::memory_order_release); }

  uint64_t Begun(StreamKind stream) const {
    return Of(stream).begun.load(std::memory_order_acquire);
  }
  bool IsDone(StreamKind stream, uint64_t point) const {
    return Of(stream).done.load(std::memory_order_acquire) >= point;
  }
  // False when the deadline passes first.
  bool WaitUntilDone(StreamKind stream, uint64_t point, Deadline deadline) const;

 private:
  Counts& Of(StreamKind stream) { return counts_[static_cast<size_t>(stream)]; }
  const Counts& Of(StreamKind stream) const { return counts_[static_cast<size_t>(stream)]; }

  std::array<Counts, kStreamCount> counts_;
};

}  // namespace expertflow::cpu
