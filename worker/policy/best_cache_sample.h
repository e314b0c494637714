// How far the cache is from the best possible one, live: now and then a window of events is noted,
// and at its end replayed with knowledge of what came (Belady with bypass: what is used last
// leaves, and a newcomer that comes even later is not kept). A pure policy, one thread.
//
// Both start from what was resident when the window began. Only its first part counts: what comes
// in the rest tells the best cache what to keep until then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace expertflow {

struct BestCacheSampleOptions {
  size_t experts = 0;                // numbered through
  std::vector<uint8_t> slot_class;   // of each; empty: there is one class
  std::vector<int32_t> slots = {0};  // of each class
  int32_t window_events = 0;
  int32_t counted_events = 0;  // the first of them
  int32_t pause_events = 0;    // between two windows
};

class BestCacheSample {
 public:
  // Sums over the windows that have ended.
  struct Counts {
    uint64_t uses = 0;
    uint64_t misses = 0;      // of the cache
    uint64_t lru_misses = 0;  // of plain LRU
    uint64_t best_misses = 0;
  };

  // REQUIRES: 0 < counted_events <= window_events; pause_events >= 0
  explicit BestCacheSample(const BestCacheSampleOptions& options);

  // The coming event is the first of a window: Begin() must be called.
  bool WantsBegin() const { return pause_left_ == 0 && events_.size() == 1 && uses_.empty(); }
  // `resident`: distinct, at most as many as there are slots.
  void Begin(std::span<const size_t> resident);
  // Of the last class, from now on; a window that has begun does not count.
  void SetSlots(int32_t slots);
  // Distinct experts of an event, and how many of them each missed. Outside of a window it waits.
  void OnEvent(std::span<const size_t> uses, uint64_t misses, uint64_t lru_misses);

  const Counts& counts() const { return counts_; }

 private:
  size_t ClassOf(size_t expert) const {
    return options_.slot_class.empty() ? 0 : options_.slot_class[expert];
  }
  uint64_t BestMisses();

  BestCacheSampleOptions options_;
  int32_t pause_left_;
  // The window so far: uses of event i are uses_[events_[i] .. events_[i + 1]).
  std::vector<size_t> uses_;
  std::vector<size_t> events_;
  std::vector<size_t> resident_;
  Counts window_;
  Counts counts_;
};

}  // namespace expertflow
