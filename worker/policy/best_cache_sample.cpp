#include "worker/policy/best_cache_sample.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace expertflow {

BestCacheSample::BestCacheSample(const BestCacheSampleOptions& options)
    : options_(options), pause_left_(options.pause_events), events_{0} {
  CHECK(options_.counted_events > 0 && options_.counted_events <= options_.window_events);
  CHECK(options_.pause_events >= 0 && !options_.slots.empty());
  CHECK(options_.slot_class.empty() || options_.slot_class.size() == options_.experts);
}

void BestCacheSample::Begin(std::span<const size_t> resident) {
  resident_.assign(resident.begin(), resident.end());
}

void BestCacheSample::SetSlots(int32_t slots) {
  options_.slots.back() = slots;
  if (pause_left_ > 0) return;
  window_ = {};
  uses_.clear();
  events_.assign(1, 0);
  pause_left_ = options_.pause_events;
}

void BestCacheSample::OnEvent(std::span<const size_t> uses, uint64_t misses, uint64_t lru_misses) {
  if (pause_left_ > 0) {
    --pause_left_;
    return;
  }
  const size_t event = events_.size() - 1;
  uses_.insert(uses_.end(), uses.begin(), uses.end());
  events_.push_back(uses_.size());
  if (event < static_cast<size_t>(options_.counted_events)) {
    window_.uses += uses.size();
    window_.misses += misses;
    window_.lru_misses += lru_misses;
  }
  if (event + 1 < static_cast<size_t>(options_.window_events)) return;
  counts_.uses += window_.uses;
  counts_.misses += window_.misses;
  counts_.lru_misses += window_.lru_misses;
  counts_.best_misses += BestMisses();
  window_ = {};
  uses_.clear();
  events_.assign(1, 0);
  pause_left_ = options_.pause_events;
}

uint64_t BestCacheSample::BestMisses() {
  // By use: the event of the expert's next one.
  constexpr uint32_t kNever = UINT32_MAX;
  std::vector<uint32_t> next(uses_.size(), kNever);
  std::vector<uint32_t> upcoming(options_.experts, kNever);
  for (size_t event = events_.size() - 1; event-- > 0;) {
    for (size_t i = events_[event]; i < events_[event + 1]; ++i) {
      next[i] = std::exchange(upcoming[uses_[i]], static_cast<uint32_t>(event));
    }
  }
  // Residents of each class by next use, the last one on top; entries that are no longer true are
  // skipped.
  struct Residents {
    std::vector<std::pair<uint32_t, size_t>> heap;
    int32_t count = 0;
  };
  std::vector<uint32_t> held(options_.experts, 0);  // next use + 1; 0: not resident
  std::vector<Residents> residents(options_.slots.size());
  const auto hold = [&](size_t expert, uint32_t at) {
    auto& heap = residents[ClassOf(expert)].heap;
    held[expert] = at == kNever ? kNever : at + 1;
    heap.emplace_back(held[expert], expert);
    std::push_heap(heap.begin(), heap.end());
  };
  for (const size_t expert : resident_) {
    hold(expert, upcoming[expert]);
    ++residents[ClassOf(expert)].count;
  }
  uint64_t misses = 0;
  std::vector<size_t> missing;
  for (size_t event = 0; event < static_cast<size_t>(options_.counted_events); ++event) {
    const size_t begin = events_[event];
    const size_t end = events_[event + 1];
    // All of an event is looked up at once: what makes room for another of its experts was there.
    missing.clear();
    for (size_t i = begin; i < end; ++i) {
      if (held[uses_[i]] != 0) {
        hold(uses_[i], next[i]);
      } else {
        missing.push_back(i);
      }
    }
    for (const size_t i : missing) {
      ++misses;
      const uint32_t own = next[i] == kNever ? kNever : next[i] + 1;
      const size_t slot_class = ClassOf(uses_[i]);
      auto& [heap, count] = residents[slot_class];
      if (count < options_.slots[slot_class]) {
        ++count;
        hold(uses_[i], next[i]);
        continue;
      }
      while (!heap.empty() && held[heap.front().second] != heap.front().first) {
        std::pop_heap(heap.begin(), heap.end());
        heap.pop_back();
      }
      if (heap.empty() || heap.front().first <= own) continue;  // passes through
      held[heap.front().second] = 0;
      hold(uses_[i], next[i]);
    }
  }
  return misses;
}

}  // namespace expertflow
