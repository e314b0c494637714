// The copy engine of an emulated link: a thread of its own that makes the copies of the transfer
// stream, in their order, so that the thread that computes does not. It watches for copies and
// sleeps when there have been none for a while. Waking it takes as long as a small copy, so a
// caller who finds it asleep makes the copy itself, and wakes it for later ones when copies follow
// each other closely.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "device/cpu/stream_progress.h"

namespace expertflow::cpu {

class CopyThread {
 public:
  // `progress` outlives it.
  explicit CopyThread(StreamProgress& progress);
  // After all that was handed over.
  ~CopyThread();
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  // One thread at a time calls these two.

  // The copy will be made, and is work of the transfer stream until then. False: not by this
  // thread, now; the caller may, after Drain().
  bool HandOver(void* to, const void* from, size_t bytes, int64_t now_ns);
  // Returns when all that was handed over is done.
  void Drain() const;

 private:
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
  };
  void Main();
  void Wake();

  StreamProgress& progress_;
  std::array<Copy, 64> ring_;
  int64_t asked_ns_ = 0;  // the caller's: when it last had a copy to make
  alignas(64) std::atomic<uint64_t> handed_{0};
  alignas(64) std::atomic<uint64_t> done_{0};
  alignas(64) std::atomic<int32_t> asleep_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace expertflow::cpu
