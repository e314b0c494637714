#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "common/check.h"
#include "sim/eviction_heap.h"
#include "sim/replay_cache.h"

namespace expertflow {
namespace {

// Policies whose order of eviction changes only where an expert is used: a heap keyed by the
// policy. Members of the event are out of the heap while it lasts, so that none is a victim.
class HeapCache : public ReplayCache {
 public:
  HeapCache(const ReplaySetup& setup, size_t experts)
      : slots_(setup.slots), heap_(experts), resident_map_(experts, 0) {}

  void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) override {
    BeforeEvent(event);
    for (size_t i = 0; i < event.experts.size(); ++i) {
      const int32_t expert = event.experts[i];
      missed[i] = resident_map_[static_cast<size_t>(expert)] == 0 ? 1 : 0;
      if (missed[i] == 0) heap_.Remove(expert);
      NoteUse(event, i, missed[i] != 0);
    }
    if (any_may_leave_) {
      for (const int32_t expert : event.experts) Hold(expert);
      for (const int32_t expert : event.experts) heap_.Push(expert, KeyFor(expert));
      while (resident_ > slots_) EvictTop();
      return;
    }
    for (size_t i = 0; i < event.experts.size(); ++i) {
      if (missed[i] != 0) Admit(event.experts[i]);
    }
    for (const int32_t expert : event.experts) {
      if (resident_map_[static_cast<size_t>(expert)] != 0) heap_.Push(expert, KeyFor(expert));
    }
  }

  int32_t resident() const override { return resident_; }

  Status CheckInvariants() const override {
    const auto held = std::count(resident_map_.begin(), resident_map_.end(), uint8_t{1});
    if (held != resident_ || resident_ > slots_) return Internal("residents are miscounted");
    if (heap_.size() != static_cast<size_t>(resident_)) return Internal("the heap lost a resident");
    return heap_.IsConsistent() ? OkStatus() : Internal("the heap is out of order");
  }

 protected:
  virtual void BeforeEvent(const ReplayEvent&) {}
  virtual void NoteUse(const ReplayEvent& event, size_t index, bool missed) = 0;
  virtual EvictionHeap::Key KeyFor(int32_t expert) const = 0;
  // False: this newcomer is not worth this victim.
  virtual bool Prefers(int32_t /*newcomer*/, int32_t /*victim*/) const { return true; }

  const int32_t slots_;
  EvictionHeap heap_;
  // For the bound: after an event any expert may leave, the event's own as well.
  bool any_may_leave_ = false;

 private:
  void Hold(int32_t expert) {
    uint8_t& held = resident_map_[static_cast<size_t>(expert)];
    resident_ += held == 0 ? 1 : 0;
    held = 1;
  }
  void EvictTop() {
    const int32_t victim = heap_.Top();
    heap_.Remove(victim);
    resident_map_[static_cast<size_t>(victim)] = 0;
    --resident_;
  }
  void Admit(int32_t expert) {
    if (resident_ == slots_) {
      if (heap_.empty() || !Prefers(expert, heap_.Top())) return;
      EvictTop();
    }
    Hold(expert);
  }

  std::vector<uint8_t> resident_map_;
  int32_t resident_ = 0;
};

class Lru final : public HeapCache {
 public:
  Lru(const ReplaySetup& setup, size_t experts) : HeapCache(setup, experts), last_(experts, 0) {}

 private:
  void NoteUse(const ReplayEvent& event, size_t index, bool) override {
    last_[static_cast<size_t>(event.experts[index])] = event.number;
  }
  EvictionHeap::Key KeyFor(int32_t expert) const override {
    return {0, last_[static_cast<size_t>(expert)]};
  }
  std::vector<uint64_t> last_;
};

// Uses since the beginning, resident or not; among equals the least recently used goes.
class Lfu final : public HeapCache {
 public:
  Lfu(const ReplaySetup& setup, size_t experts)
      : HeapCache(setup, experts), uses_(experts, 0), last_(experts, 0) {}

 private:
  void NoteUse(const ReplayEvent& event, size_t index, bool) override {
    const auto e = static_cast<size_t>(event.experts[index]);
    uses_[e] += 1;
    last_[e] = event.number;
  }
  EvictionHeap::Key KeyFor(int32_t expert) const override {
    return {uses_[static_cast<size_t>(expert)], last_[static_cast<size_t>(expert)]};
  }
  std::vector<double> uses_;
  std::vector<uint64_t> last_;
};

// Uses that lose half their weight in each `half_life` steps. The weight of a new use grows
// instead, so that the order of the others stays what it was.
class DecayedLfu final : public HeapCache {
 public:
  DecayedLfu(const ReplaySetup& setup, size_t experts, double half_life)
      : HeapCache(setup, experts),
        growth_(std::exp2(1 / half_life)),
        score_(experts, 0),
        last_(experts, 0) {}

 private:
  void BeforeEvent(const ReplayEvent& event) override {
    if (event.step == step_) return;
    step_ = event.step;
    weight_ *= growth_;
    if (weight_ < 0x1p500) return;
    for (double& score : score_) {
      score *= 0x1p-500;
      if (score < 0x1p-400) score = 0;  // keeps denormal numbers out
    }
    heap_.Scale(0x1p-500);
    weight_ *= 0x1p-500;
  }
  void NoteUse(const ReplayEvent& event, size_t index, bool) override {
    const auto e = static_cast<size_t>(event.experts[index]);
    score_[e] += weight_;
    last_[e] = event.number;
  }
  EvictionHeap::Key KeyFor(int32_t expert) const override {
    return {score_[static_cast<size_t>(expert)], last_[static_cast<size_t>(expert)]};
  }

  bool Prefers(int32_t newcomer, int32_t victim) const override {
    return score_[static_cast<size_t>(newcomer)] >= score_[static_cast<size_t>(victim)];
  }

  const double growth_;
  double weight_ = 1;
  size_t step_ = 0;
  std::vector<double> score_;
  std::vector<uint64_t> last_;
};

// The paper's two levels: `high` has what was used in the last few steps, and used again while it
// was here or by several sequences at once; the rest is in `low`, which victims come from first.
// Both are LRU. (What a predictor expects soon belongs to `high` as well; this arm has no
// predictor.)
class TwoLevelLru final : public HeapCache {
 public:
  TwoLevelLru(const ReplaySetup& setup, size_t experts)
      : HeapCache(setup, experts), last_(experts, 0), high_(experts, 0) {}

 private:
  static constexpr int32_t kShared = 2;
  static constexpr size_t kRecentSteps = 8;
  struct Use {
    size_t step = 0;
    uint64_t event = 0;
    int32_t expert = 0;
  };

  void BeforeEvent(const ReplayEvent& event) override {
    for (; oldest_ < uses_.size() && uses_[oldest_].step + kRecentSteps < event.step; ++oldest_) {
      const Use& use = uses_[oldest_];
      const auto e = static_cast<size_t>(use.expert);
      if (last_[e] != use.event || high_[e] == 0) continue;  // used again since
      high_[e] = 0;
      if (!heap_.Contains(use.expert)) continue;
      heap_.Remove(use.expert);
      heap_.Push(use.expert, KeyFor(use.expert));
    }
    if (oldest_ > 4096 && oldest_ * 2 > uses_.size()) {
      uses_.erase(uses_.begin(), uses_.begin() + static_cast<ptrdiff_t>(oldest_));
      oldest_ = 0;
    }
  }
  void NoteUse(const ReplayEvent& event, size_t index, bool missed) override {
    const auto e = static_cast<size_t>(event.experts[index]);
    last_[e] = event.number;
    high_[e] = !missed || event.users[index] >= kShared ? 1 : 0;
    uses_.push_back({event.step, event.number, event.experts[index]});
  }
  EvictionHeap::Key KeyFor(int32_t expert) const override {
    return {static_cast<double>(high_[static_cast<size_t>(expert)]),
            last_[static_cast<size_t>(expert)]};
  }
  std::vector<uint64_t> last_;
  std::vector<uint8_t> high_;
  std::vector<Use> uses_;  // oldest first, from oldest_ on
  size_t oldest_ = 0;
};

// Belady's optimum, extended by bypass: keeps those whose next use comes first.
class Belady final : public HeapCache {
 public:
  Belady(const ReplaySetup& setup, size_t experts)
      : HeapCache(setup, experts),
        lockstep_(*setup.lockstep),
        next_uses_(NextUses(*setup.lockstep)),
        next_(experts, 0) {
    any_may_leave_ = true;
  }

 private:
  void NoteUse(const ReplayEvent& event, size_t index, bool) override {
    // The event may be a part of the lockstep's.
    const std::span<const int32_t> all = lockstep_.ExpertsOf(event.number);
    const int32_t expert = event.experts[index];
    const auto place = std::lower_bound(all.begin(), all.end(), expert) - all.begin();
    next_[static_cast<size_t>(expert)] =
        next_uses_[lockstep_.event_begin[event.number] + static_cast<size_t>(place)];
  }
  EvictionHeap::Key KeyFor(int32_t expert) const override {
    return {-static_cast<double>(next_[static_cast<size_t>(expert)]), 0};
  }
  const Lockstep& lockstep_;
  const std::vector<uint32_t> next_uses_;
  std::vector<uint32_t> next_;
};

// The experts that a training part used most, for good.
class StaticBinding final : public ReplayCache {
 public:
  StaticBinding(const ReplaySetup& setup, size_t experts) : held_(experts, 0) {
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    const auto& uses = setup.training_uses;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return uses[static_cast<size_t>(a)] > uses[static_cast<size_t>(b)];
    });
    resident_ = std::min(setup.slots, static_cast<int32_t>(experts));
    for (int32_t i = 0; i < resident_; ++i) {
      held_[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1;
    }
  }
  void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) override {
    for (size_t i = 0; i < event.experts.size(); ++i) {
      missed[i] = held_[static_cast<size_t>(event.experts[i])] == 0 ? 1 : 0;
    }
  }
  int32_t resident() const override { return resident_; }
  Status CheckInvariants() const override { return OkStatus(); }

 private:
  std::vector<uint8_t> held_;
  int32_t resident_ = 0;
};

// An LRU for each layer; slots are dealt evenly, the first layers get what is left over.
class LruPerLayer final : public ReplayCache {
 public:
  LruPerLayer(const ReplaySetup& setup, size_t experts) {
    const int32_t layers = setup.lockstep->layers;
    for (int32_t l = 0; l < layers; ++l) {
      ReplaySetup part = setup;
      part.slots = setup.slots / layers + (l < setup.slots % layers ? 1 : 0);
      layers_.emplace_back(part, experts);
    }
  }
  void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) override {
    layers_[static_cast<size_t>(event.layer)].OnEvent(event, missed);
  }
  int32_t resident() const override {
    int32_t sum = 0;
    for (const Lru& layer : layers_) sum += layer.resident();
    return sum;
  }
  Status CheckInvariants() const override {
    for (const Lru& layer : layers_) RETURN_IF_ERROR(layer.CheckInvariants());
    return OkStatus();
  }

 private:
  std::vector<Lru> layers_;
};

// Frequency over recency: uses since the beginning, divided by the events since the latest one. The
// order changes with time, so the residents are searched.
class Lfru final : public ReplayCache {
 public:
  Lfru(const ReplaySetup& setup, size_t experts)
      : slots_(setup.slots), uses_(experts, 0), last_(experts, 0), place_(experts, -1) {}

  void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) override {
    for (size_t i = 0; i < event.experts.size(); ++i) {
      const auto e = static_cast<size_t>(event.experts[i]);
      missed[i] = place_[e] < 0 ? 1 : 0;
      uses_[e] += 1;
      last_[e] = event.number;
    }
    for (size_t i = 0; i < event.experts.size(); ++i) {
      if (missed[i] != 0) Admit(event.experts[i], event.number);
    }
  }
  int32_t resident() const override { return static_cast<int32_t>(residents_.size()); }
  Status CheckInvariants() const override {
    if (resident() > slots_) return Internal("more residents than slots");
    for (size_t i = 0; i < residents_.size(); ++i) {
      if (place_[static_cast<size_t>(residents_[i])] != static_cast<int32_t>(i)) {
        return Internal("a resident is not where it should be");
      }
    }
    return OkStatus();
  }

 private:
  void Admit(int32_t expert, uint64_t now) {
    if (resident() < slots_) {
      place_[static_cast<size_t>(expert)] = resident();
      residents_.push_back(expert);
      return;
    }
    int32_t victim = -1;
    double worst = std::numeric_limits<double>::infinity();
    for (const int32_t candidate : residents_) {
      const auto c = static_cast<size_t>(candidate);
      if (last_[c] == now) continue;  // of this event
      const double score = uses_[c] / static_cast<double>(now - last_[c]);
      if (score < worst || (score == worst && candidate < victim)) {
        worst = score;
        victim = candidate;
      }
    }
    if (victim < 0) return;
    const int32_t place = std::exchange(place_[static_cast<size_t>(victim)], -1);
    residents_[static_cast<size_t>(place)] = expert;
    place_[static_cast<size_t>(expert)] = place;
  }

  const int32_t slots_;
  std::vector<double> uses_;
  std::vector<uint64_t> last_;
  std::vector<int32_t> residents_;
  std::vector<int32_t> place_;  // in residents_; -1: not resident
};

// Slots of several sizes: a cache for each class, which sees the experts of its class alone.
class ByClass final : public ReplayCache {
 public:
  ByClass(std::span<const uint8_t> slot_class, std::vector<std::unique_ptr<ReplayCache>> caches)
      : slot_class_(slot_class.begin(), slot_class.end()), caches_(std::move(caches)) {}

  void OnEvent(const ReplayEvent& event, std::span<uint8_t> missed) override {
    for (size_t c = 0; c < caches_.size(); ++c) {
      experts_.clear();
      users_.clear();
      places_.clear();
      for (size_t i = 0; i < event.experts.size(); ++i) {
        if (slot_class_[static_cast<size_t>(event.experts[i])] != c) continue;
        experts_.push_back(event.experts[i]);
        users_.push_back(event.users[i]);
        places_.push_back(i);
      }
      ReplayEvent own = event;
      own.experts = experts_;
      own.users = users_;
      missed_.resize(experts_.size());
      caches_[c]->OnEvent(own, missed_);
      for (size_t i = 0; i < places_.size(); ++i) missed[places_[i]] = missed_[i];
    }
  }
  int32_t resident() const override {
    int32_t sum = 0;
    for (const auto& cache : caches_) sum += cache->resident();
    return sum;
  }
  Status CheckInvariants() const override {
    for (const auto& cache : caches_) RETURN_IF_ERROR(cache->CheckInvariants());
    return OkStatus();
  }

 private:
  const std::vector<uint8_t> slot_class_;
  std::vector<std::unique_ptr<ReplayCache>> caches_;
  // Of the class's part of the event.
  std::vector<int32_t> experts_;
  std::vector<int32_t> users_;
  std::vector<size_t> places_;
  std::vector<uint8_t> missed_;
};

Result<std::unique_ptr<ReplayCache>> MakeByClass(std::string_view policy,
                                                 const ReplaySetup& setup) {
  std::vector<std::unique_ptr<ReplayCache>> caches;
  for (size_t c = 0; c < setup.class_slots.size(); ++c) {
    ReplaySetup own = setup;
    own.slots = setup.class_slots[c];
    own.slot_class = {};
    std::vector<uint64_t> uses(setup.training_uses.begin(), setup.training_uses.end());
    for (size_t e = 0; e < uses.size(); ++e) {
      if (setup.slot_class[e] != c) uses[e] = 0;
    }
    own.training_uses = uses;
    ASSIGN_OR_RETURN(auto cache, MakeReplayCache(policy, own));
    caches.push_back(std::move(cache));
  }
  return std::unique_ptr<ReplayCache>(
      std::make_unique<ByClass>(setup.slot_class, std::move(caches)));
}

constexpr std::string_view kDecayedPrefix = "decayed-lfu-";

std::optional<double> HalfLife(std::string_view policy) {
  if (policy.substr(0, kDecayedPrefix.size()) != kDecayedPrefix) return std::nullopt;
  policy.remove_prefix(kDecayedPrefix.size());
  double value = 0;
  const auto [end, error] = std::from_chars(policy.data(), policy.data() + policy.size(), value);
  if (error != std::errc() || end != policy.data() + policy.size()) return std::nullopt;
  if (!(value >= 0.1 && value <= 1e6)) return std::nullopt;
  return value;
}

}  // namespace

Result<std::unique_ptr<ReplayCache>> MakeReplayCache(std::string_view policy,
                                                     const ReplaySetup& setup) {
  CHECK(setup.lockstep != nullptr && setup.slots >= 0);
  const auto experts = static_cast<size_t>(setup.lockstep->base.back());
  using Cache = std::unique_ptr<ReplayCache>;
  const bool ours = policy == "ours" || policy == "ours-no-forecast";
  if (!setup.slot_class.empty() && !ours) return MakeByClass(policy, setup);
  if (policy == "static") {
    CHECK(setup.training_uses.size() == experts);
    return Cache(std::make_unique<StaticBinding>(setup, experts));
  }
  if (policy == "lru") return Cache(std::make_unique<Lru>(setup, experts));
  if (policy == "lru-layer") return Cache(std::make_unique<LruPerLayer>(setup, experts));
  if (policy == "lfu") return Cache(std::make_unique<Lfu>(setup, experts));
  if (policy == "lfru") return Cache(std::make_unique<Lfru>(setup, experts));
  if (policy == "two-level") return Cache(std::make_unique<TwoLevelLru>(setup, experts));
  if (policy == "belady") return Cache(std::make_unique<Belady>(setup, experts));
  if (ours) return MakeExpertCacheArm(policy == "ours", setup);
  if (const auto half_life = HalfLife(policy)) {
    return Cache(std::make_unique<DecayedLfu>(setup, experts, *half_life));
  }
  return InvalidArgument("unknown policy " + std::string(policy) +
                         "; expected static, lru, lru-layer, lfu, lfru, decayed-lfu-<half-life in "
                         "tokens>, two-level, ours, ours-no-forecast, belady");
}

std::vector<uint32_t> NextUses(const Lockstep& lockstep) {
  const size_t events = lockstep.events();
  std::vector<uint32_t> next(lockstep.experts.size());
  std::vector<uint32_t> upcoming(static_cast<size_t>(lockstep.base.back()),
                                 static_cast<uint32_t>(events));
  for (size_t event = events; event-- > 0;) {
    for (size_t i = lockstep.event_begin[event]; i < lockstep.event_begin[event + 1]; ++i) {
      uint32_t& use = upcoming[static_cast<size_t>(lockstep.experts[i])];
      next[i] = use;
      use = static_cast<uint32_t>(event);
    }
  }
  return next;
}

}  // namespace expertflow
