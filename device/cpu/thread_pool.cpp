#include "device/cpu/thread_pool.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

#include "common/clock.h"

namespace expertflow::cpu {
namespace {

constexpr int64_t kSpinNs = 40'000;
constexpr int kPausesBetweenClockReads = 32;
constexpr int kPausesBeforeYield = 2'000;

void Pause() {
  __builtin_ia32_pause();
}

int32_t UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::clamp(CPU_COUNT(&set), 1, ThreadPool::kThreadsMax);
}

}  // namespace

Result<std::unique_ptr<ThreadPool>> ThreadPool::Create(int32_t threads) {
  if (threads < 0 || threads > kThreadsMax) {
    return InvalidArgument(
        fmt::format("{} compute threads: expected 1 to {}, or 0 for all CPUs that this process may "
                    "use",
                    threads, kThreadsMax));
  }
  if (threads == 0) threads = UsableCpus();
  std::unique_ptr<ThreadPool> pool(new ThreadPool(threads));
  try {
    for (int32_t thread = 1; thread < threads; ++thread) {
      pool->workers_.emplace_back([p = pool.get(), thread] { p->WorkerMain(thread); });
    }
  } catch (const std::system_error& error) {
    return ResourceExhausted(fmt::format("cannot start compute thread {} of {}: {}; ask for fewer",
                                         pool->workers_.size() + 2, threads, error.what()));
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  wakeups_.fetch_add(1);
  wakeups_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int32_t chunks, Invoke invoke, const void* body) {
  invoke_ = invoke;
  body_ = body;
  chunks_ = chunks;
  done_.store(0, std::memory_order_relaxed);
  unclaimed_.store(chunks, std::memory_order_release);
  wakeups_.fetch_add(1);
  wakeups_.notify_all();
  ClaimChunks(0);
  int pauses = 0;
  while (done_.load(std::memory_order_acquire) != chunks) {
    if (++pauses < kPausesBeforeYield) {
      Pause();
    } else {
      sched_yield();
    }
  }
}

void ThreadPool::ClaimChunks(int32_t thread) {
  int32_t left = unclaimed_.load(std::memory_order_relaxed);
  while (left > 0) {
    if (!unclaimed_.compare_exchange_weak(left, left - 1, std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
      continue;
    }
    invoke_(body_, chunks_ - left, thread);
    done_.fetch_add(1, std::memory_order_release);
    left = unclaimed_.load(std::memory_order_relaxed);
  }
}

void ThreadPool::WorkerMain(int32_t thread) {
  while (!stop_.load(std::memory_order_acquire)) {
    const uint32_t wakeups = wakeups_.load(std::memory_order_acquire);
    ClaimChunks(thread);
    const int64_t spin_end_ns = NowNs() + kSpinNs;
    for (int pauses = 1; wakeups_.load(std::memory_order_acquire) == wakeups; ++pauses) {
      if (pauses % kPausesBetweenClockReads == 0 && NowNs() >= spin_end_ns) break;
      Pause();
    }
    wakeups_.wait(wakeups, std::memory_order_acquire);
  }
}

}  // namespace expertflow::cpu
