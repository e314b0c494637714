#include "device/cpu/copy_thread.h"

#include <cstring>

#include "common/clock.h"

namespace expertflow::cpu {
namespace {

// How long it watches after a copy, and how closely copies follow each other that it is woken for.
constexpr int64_t kAwakeNs = 1'000'000;

}  // namespace

CopyThread::CopyThread(StreamProgress& progress)
    : progress_(progress), thread_(&CopyThread::Main, this) {}

CopyThread::~CopyThread() {
  stop_.store(true);
  Wake();
  thread_.join();
}

void CopyThread::Wake() {
  if (asleep_.exchange(0) != 0) asleep_.notify_one();
}

bool CopyThread::HandOver(void* to, const void* from, size_t bytes, int64_t now_ns) {
  const bool often = now_ns - asked_ns_ < kAwakeNs;
  asked_ns_ = now_ns;
  if (asleep_.load() != 0) {
    if (often) Wake();
    return false;
  }
  const uint64_t handed = handed_.load(std::memory_order_relaxed);
  if (handed - done_.load(std::memory_order_acquire) == ring_.size()) return false;
  ring_[handed % ring_.size()] = {to, from, bytes};
  progress_.Begin(StreamKind::kTransfer);
  handed_.store(handed + 1);
  // It may have gone to sleep meanwhile; it looks once more after it has said so.
  if (asleep_.load() != 0) Wake();
  return true;
}

void CopyThread::Drain() const {
  const uint64_t handed = handed_.load(std::memory_order_relaxed);
  while (done_.load(std::memory_order_acquire) != handed) std::this_thread::yield();
}

void CopyThread::Main() {
  int64_t busy_ns = NowNs();
  uint64_t done = 0;
  while (true) {
    if (handed_.load() != done) {
      const Copy& copy = ring_[done % ring_.size()];
      std::memcpy(copy.to, copy.from, copy.bytes);
      progress_.End(StreamKind::kTransfer);
      done_.store(++done, std::memory_order_release);
      busy_ns = NowNs();
      continue;
    }
    if (stop_.load()) return;
    if (NowNs() - busy_ns < kAwakeNs) {
      __builtin_ia32_pause();
      continue;
    }
    asleep_.store(1);
    if (handed_.load() == done && !stop_.load()) asleep_.wait(1);
    asleep_.store(0);
    busy_ns = NowNs();
  }
}

}  // namespace expertflow::cpu
