// Drives the transfer stream of a device: takes chunks from the TransferQueue, copies them, and
// reports when a copy has ended. One mutex guards the queue, the policies around it (the executor's
// cache and planner) and the in-flight chunks; it is never held during device work.
//
// The engine's own thread does the work while compute is busy. Waking it takes about as long as
// copying a small expert, so the thread that computes helps where it costs less than the wake-up:
// where copies are asynchronous it starts small chunks itself (Start) and takes note of those that
// have arrived (Poll); while it has to wait for a copy anyway it drives the stream (WaitForCopy).
// `pumping_` makes sure that one thread at a time drives the transfer and management streams.
//
// A chunk that does not finish within the deadline fails its copy with a Status; the engine goes
// on. The memory of a failed copy may be reused: later work on the transfer stream stays behind it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "device/device.h"
#include "worker/cache/expert_cache.h"
#include "worker/cache/transfer_queue.h"
#include "worker/executor_observer.h"

namespace expertflow {

struct TransferEngineOptions {
  TransferQueueOptions queue;
  int64_t copy_deadline_ns = 30'000'000'000;
  bool poison = false;  // fill a destination with NaN before it is loaded
};

struct TransferJob {
  CopyRequest request;
  const std::byte* source = nullptr;  // host
  std::byte* destination = nullptr;   // device
  size_t destination_bytes = 0;       // what poisoning fills
  EventHandle after;    // of the compute stream: the destination's last reader; may be invalid
  SlotRef slot;         // the owner's: a slot,
  int32_t buffer = -1;  // or a streaming buffer
};

class TransferEngine {
 public:
  using Lock = std::unique_lock<std::mutex>;

  class Listener {
   public:
    virtual ~Listener() = default;
    // A copy has ended: kDone, kCancelled or kFailed (then `status` tells why). The lock is held;
    // the listener may enqueue.
    virtual void OnCopyEnd(const TransferJob& job, const CopyEnd& end, const Status& status) = 0;
  };

  // REQUIRES: device, listener and observer (may be null) outlive it
  static Result<std::unique_ptr<TransferEngine>> Create(Device& device,
                                                        const TransferEngineOptions& options,
                                                        Listener& listener,
                                                        ExecutorObserver* observer);
  // Ends the thread after the chunks that are outstanding; what is queued is dropped silently.
  ~TransferEngine();

  std::mutex& mutex() const { return mutex_; }

  // --- REQUIRES: the mutex is held -------------------------------------------------------------
  // Not valid when the queue is full.
  CopyId Enqueue(const TransferJob& job);
  void Promote(CopyId copy) { queue_.Promote(copy); }
  // The listener hears the end: within the call, or when the outstanding chunk is done.
  void Cancel(CopyId copy);
  void OpenWindow() { queue_.OpenWindow(); }
  // Gives what is queued to the engine's thread, if there is something.
  void Wake();
  // For a caller that goes on to compute: starts small chunks where that does not wait, and leaves
  // the rest to the engine's thread. `waits`: the caller will wait for its copies afterwards, so
  // those that take less time than waking a thread are left to it.
  void Start(Lock& lock, bool waits);
  // Reports the chunks that have arrived, where nobody else is at it. Does not wait for the device.
  void Poll(Lock& lock);
  // Returns when any copy has ended since the call. May drive the transfer stream itself.
  // kDeadlineExceeded, or kInternal when nothing is under way that could end.
  Status WaitForCopy(Lock& lock, Deadline deadline);
  const TransferQueueStats& queue_stats() const { return queue_.stats(); }
  const TransferQueue& queue() const { return queue_; }

 private:
  struct InFlight {
    Chunk chunk;
    TransferJob job;
    EventHandle event;
  };

  TransferEngine(Device& device, const TransferEngineOptions& options, Listener& listener,
                 ExecutorObserver* observer);
  bool CanPump() const { return !pumping_ && (in_flight_count_ > 0 || queue_.HasWork()); }
  // Finishes the oldest chunk or starts another. REQUIRES: CanPump()
  void Pump(Lock& lock);
  void StartChunk(Lock& lock);
  void FinishChunk(Lock& lock);
  Status Issue(const InFlight& work);
  void Report(const InFlight& work, const Status& status);
  void End(const TransferJob& job, const CopyEnd& end, const Status& status);
  void ThreadMain();

  Device& device_;
  const TransferEngineOptions options_;
  Listener& listener_;
  ExecutorObserver* const observer_;
  EventHandle poison_event_;

  mutable std::mutex mutex_;
  // Protected by mutex_.
  TransferQueue queue_;
  std::vector<TransferJob> jobs_;    // by CopyId::index
  std::vector<Status> failures_;     // by CopyId::index: the first failed chunk's
  std::vector<InFlight> in_flight_;  // ring: oldest at in_flight_first_
  size_t in_flight_first_ = 0;
  size_t in_flight_count_ = 0;
  bool pumping_ = false;
  bool thread_idle_ = false;
  bool stop_ = false;
  std::condition_variable work_;
  std::condition_variable ended_changed_;
  int32_t sleepers_ = 0;  // waiting on ended_changed_

  std::atomic<uint64_t> ended_{0};  // copies; written under mutex_
  std::thread thread_;
};

}  // namespace expertflow
