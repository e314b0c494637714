// The compute threads of a CPU device.
//
// ParallelFor() cuts work into chunks that the caller and the workers claim one by one, so a worker
// that the operating system has not scheduled yet costs nothing: the others take its share. Which
// thread runs a chunk is not defined. Between regions a worker spins for some tens of microseconds
// (decode steps follow each other closely), then sleeps; an idle pool uses no CPU.
//
// One thread at a time calls ParallelFor().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/status.h"

namespace expertflow::cpu {

class ThreadPool {
 public:
  static constexpr int32_t kThreadsMax = 256;

  // `threads` counts the caller; 0 takes every CPU that this process may use.
  static Result<std::unique_ptr<ThreadPool>> Create(int32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t threads() const { return threads_; }

  // Calls body(chunk, thread) once for each chunk in [0, chunks), on thread 0 (the caller) to
  // threads() - 1, and returns when all are done. `body` must not throw or call ParallelFor().
  template <typename Body>
  void ParallelFor(int32_t chunks, const Body& body) {
    if (threads_ == 1 || chunks <= 1) {
      for (int32_t chunk = 0; chunk < chunks; ++chunk) body(chunk, 0);
      return;
    }
    Run(
        chunks,
        [](const void* b, int32_t chunk, int32_t thread) {
          (*static_cast<const Body*>(b))(chunk, thread);
        },
        &body);
  }

 private:
  using Invoke = void (*)(const void* body, int32_t chunk, int32_t thread);

  explicit ThreadPool(int32_t threads) : threads_(threads) {}
  void Run(int32_t chunks, Invoke invoke, const void* body);
  void ClaimChunks(int32_t thread);
  void WorkerMain(int32_t thread);

  const int32_t threads_;
  std::vector<std::thread> workers_;

  // The region. Written by the caller while no chunk is open; a thread reads it after it claimed a
  // chunk, which keeps the region open until that chunk is done.
  Invoke invoke_ = nullptr;
  const void* body_ = nullptr;
  int32_t chunks_ = 0;

  alignas(64) std::atomic<int32_t> unclaimed_{0};  // opens the region when it becomes positive
  alignas(64) std::atomic<int32_t> done_{0};
  alignas(64) std::atomic<uint32_t> wakeups_{0};  // what a sleeping worker waits on
  std::atomic<bool> stop_{false};
};

}  // namespace expertflow::cpu
