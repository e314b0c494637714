// What plain LRU would have missed with the same slots: a list of keys, no data. The expert cache
// keeps one beside itself and falls back to LRU when it does worse (see expert_cache.h). A pure
// policy; constant time per use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace expertflow {

class ShadowLru {
 public:
  ShadowLru(size_t experts, int32_t slots);

  // The distinct experts of one event, numbered through; returns how many it misses. None of them
  // is evicted for another one of them.
  int32_t OnEvent(std::span<const size_t> experts);

  // From now on; the least recently used go.
  void SetSlots(int32_t slots);

  int32_t held() const { return held_; }
  bool Holds(size_t expert) const { return links_[expert].held; }
  // Links and count agree; for tests.
  bool IsConsistent() const;

 private:
  struct Link {
    size_t older = 0;
    size_t newer = 0;
    uint64_t event = 0;  // of its latest use
    bool held = false;
  };

  void Unlink(size_t expert);
  void PushNewest(size_t expert);

  const size_t end_;  // the list's head: its `newer` is the oldest, its `older` the newest
  int32_t slots_;
  std::vector<Link> links_;
  int32_t held_ = 0;
  uint64_t event_ = 0;
};

}  // namespace expertflow
