// The two-level expert cache of one device: which expert is in which slot, what to load and what to
// evict. A pure policy (ARCHITECTURE 2): events in, decisions out; the driver (worker/
// cached_executor.h) moves the bytes and reports back. The simulator links the same archive.
//
// Slots go kFree -> kLoading -> kReady -> kFree; a slot is pinned while an event uses it, and a
// loading or pinned slot is never a victim. Capacity is hard: the victim leaves before the newcomer
// enters, and a miss without an acceptable victim is an ordinary answer (kBypass: the expert goes
// through a streaming buffer).
//
// Slots may have several sizes (slot_classes.h). An expert takes slots of its class alone, so each
// class has free slots, victims and a shadow of its own; ranks are the same for all.
//
// An event is one (step, layer). Victims come from the low level first; within a level the expert
// with the largest expected distance to its next use goes, counted in steps:
//     d / L + (1 - p) / F
// with d the layers until its layer comes again, L the MoE layers, p the probability that it is
// used then (a prediction if there is one, else F) and F its use rate per step, a mix of decayed
// rates (PREDICTION 1). A miss is admitted only over a victim that is expected later than itself.
//
// It never does much worse than plain LRU: a shadow of LRU counts what that would have missed, and
// while the cache itself has missed more, victims are the least recently used.
//
// With a forecast (UseForecast()) that distance comes from outside, and what is expected within one
// step is the high level. Single-threaded: the driver serialises all calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"
#include "worker/cache/leaving_experts.h"
#include "worker/cache/shadow_lru.h"

namespace expertflow {

enum class SlotState : uint8_t { kFree, kLoading, kReady };

// A slot and which load of it is meant: a report about an earlier occupant is detected.
struct SlotRef {
  SlotId slot;
  uint32_t generation = 0;
  bool valid() const { return slot.valid(); }
  friend bool operator==(const SlotRef&, const SlotRef&) = default;
};

// What ranks victims.
enum class CacheRanking : uint8_t {
  kGuarded,  // the expected next use, or recency while a shadow of plain LRU misses less
  kNextUse,  // the expected next use
  kRecency,  // plain LRU
};

struct ExpertCacheOptions {
  std::vector<int32_t> experts;       // per layer of the model; 0: no MoE in this layer
  std::vector<uint64_t> block_bytes;  // per expert, layer by layer
  std::vector<uint8_t> slot_class;    // of each expert, as block_bytes; empty: there is one class
  int32_t top_k = 0;
  std::vector<int32_t> slots = {0};  // of each class; they are numbered class by class
  // An expert used by this many decode rows of one event is shared: high level.
  int32_t shared_rows = 4;
  // A prediction at least this likely keeps an expert in the high level until its layer comes.
  uint32_t high_probability_ppm = 500'000;
  CacheRanking ranking = CacheRanking::kGuarded;
};

struct LayerDemand {
  ExpertId expert;
  int32_t decode_rows = 0;
  int32_t prefill_rows = 0;
};

enum class DemandOutcome : uint8_t {
  kHit,      // ready in `slot`
  kLateHit,  // on its way into `slot`
  kLoad,     // load it into `slot`, which is reserved (state kLoading)
  kBypass,   // no slot: use a streaming buffer
};

struct DemandDecision {
  ExpertKey key;
  DemandOutcome outcome = DemandOutcome::kBypass;
  SlotRef slot;
  ExpertKey victim;  // kLoad: who left the slot; not valid when it was free
};

struct PrefetchDecision {
  SlotRef slot;  // not valid: refused
  ExpertKey victim;
};

struct ExpertCacheStats {
  uint64_t hits = 0;  // uses: distinct experts of an event
  uint64_t late_hits = 0;
  uint64_t misses = 0;    // loads and bypasses
  uint64_t bypasses = 0;  // part of misses
  uint64_t evictions = 0;
  uint64_t load_failures = 0;
  uint64_t prefetches = 0;          // accepted
  uint64_t prefetch_refusals = 0;   // no slot worth giving
  uint64_t prefetch_hits = 0;       // first use found it ready
  uint64_t prefetch_late_hits = 0;  // first use found it on its way
  uint64_t prefetch_cancelled = 0;
  uint64_t prefetch_regrets = 0;  // a victim of a prefetch was missed one step later
  uint64_t bytes_demand = 0;      // asked for by misses
  uint64_t bytes_prefetch = 0;    // arrived by prefetch, cancelled ones as far as they came
  uint64_t bytes_wasted = 0;      // part of bytes_prefetch that left without being used
  uint64_t bytes_regret = 0;
  uint64_t bytes_prefetch_used = 0;  // blocks whose first use was a (late) hit
  // Distinct experts that decode rows used in the latest full pass over the layers.
  uint64_t demand_per_step = 0;
  // What plain LRU would have missed of the uses by decode rows, and how many this cache missed.
  uint64_t lru_misses = 0;
  uint64_t decode_misses = 0;
  uint64_t lru_switches = 0;
  bool ranks_by_recency = false;  // now: LRU does better, or was asked for
  // Fewer slots than one token needs, or, in a class, than the latest pass used: the working set
  // does not fit, a stable part of it is kept (FIELD 22).
  bool thrashing = false;
};

class ExpertCache {
 public:
  // REQUIRES: block_bytes has one entry per expert, and so has slot_class unless it is empty; slots
  // has at least one class, each >= 0
  explicit ExpertCache(ExpertCacheOptions options);

  // Loads under way for `layer` that nobody in `demands` needs: cancel these before BeginLayer().
  // Valid until the next call of this function. Empty when no decode row is in the event.
  std::span<const SlotRef> WrongPrefetches(LayerId layer, std::span<const LayerDemand> demands);

  // The expected distance to its next use of every expert, in 1/1024 steps, as of the coming event:
  // ranks victims in place of the cache's own estimate. Experts are numbered through, as in
  // block_bytes. Read until the next call; empty: back to the own estimate.
  // REQUIRES: one number an expert, or none
  void UseForecast(std::span<const uint32_t> distance);

  // Decides for each demanded expert and pins what has a slot until EndLayer(). The result is in
  // the order of `demands` and valid until the next BeginLayer(). Experts that only prefill rows
  // want never evict (FIELD 23). REQUIRES: demands ascending by expert, distinct; no event open
  std::span<const DemandDecision> BeginLayer(LayerId layer, std::span<const LayerDemand> demands);
  void EndLayer();

  // `key` will be used with this probability when its layer comes next. Refused when it is here
  // already, when its expected use is later than that of every possible victim, or without a slot.
  PrefetchDecision TryPrefetch(ExpertKey key, uint32_t probability_ppm);
  // The same forecast for an expert that is resident: protects it, loads nothing.
  void NotePrediction(ExpertKey key, uint32_t probability_ppm);

  // The last `count` slots, which are of the last class, hold nothing from now on, so that their
  // memory is free for something else. False, and nothing changes, when one is in use or loading,
  // or the class has not so many. Not within an event.
  bool CloseSlots(int32_t count);
  // The last ones that were closed are there again. REQUIRES: so many are closed
  void OpenSlots(int32_t count);

  void OnLoaded(SlotRef slot);
  // The driver refused or could not finish a load; pins on it are void. The slot is free again.
  void OnLoadFailed(SlotRef slot);
  // REQUIRES: a prefetch that no event has asked for. `arrived_bytes`: what was copied in vain.
  void OnPrefetchCancelled(SlotRef slot, uint64_t arrived_bytes);

  // Resident or on its way: its slot's state; kFree when absent.
  SlotState StateOf(ExpertKey key) const;
  SlotRef SlotOf(ExpertKey key) const;
  // A prefetch that no event has asked for so far. REQUIRES: the slot still holds this load
  bool IsSpeculative(SlotRef slot) const;
  ExpertKey KeyOf(SlotId slot) const { return slots_[slot.index()].key; }
  uint64_t BlockBytes(ExpertKey key) const { return options_.block_bytes[Index(key)]; }
  int32_t slots() const { return open_slots_; }  // closed ones are not counted
  int32_t slots_used() const { return slots_used_; }
  size_t slot_classes() const { return classes_.size(); }
  int32_t slots_of(size_t slot_class) const { return classes_[slot_class].open; }
  bool AllResident() const { return slots_ready_ == static_cast<int32_t>(records_.size()); }
  // MoE layers from the current event's layer until `layer` comes: 1..L.
  int32_t LayerDistance(LayerId layer) const;
  const ExpertCacheStats& stats() const { return stats_; }

  Status CheckInvariants() const;
  // Folds every event and decision so far.
  uint64_t digest() const { return digest_.value(); }

 private:
  static constexpr uint32_t kDistanceUnit = 1024;  // a step
  static constexpr int kRates = 3;  // half-lives of the decayed use rates, see the source file

  struct Record {  // one expert
    int32_t slot = -1;
    uint32_t rates[kRates] = {};  // Q16, as of `updated`
    uint32_t updated = 0;         // its layer's step count
    uint32_t prediction_ppm = 0;  // for the next event of its layer; 0: none
    int32_t rows = 0;             // decode rows at its latest use
    uint64_t last_use = 0;        // event number
    uint32_t regret_step = 0;     // layer step at which missing it is a prefetch's fault
  };
  struct Slot {
    ExpertKey key;
    SlotState state = SlotState::kFree;
    int32_t pins = 0;
    uint32_t generation = 0;
    bool speculative = false;  // prefetched, no use yet
    uint8_t slot_class = 0;
    size_t record = 0;  // of `key`, unless free
  };
  struct Rank {  // larger: leaves first
    bool low = true;
    uint32_t distance = 0;  // 1/1024 steps
    uint64_t order() const { return uint64_t{low} << 32 | distance; }
    friend bool operator==(const Rank&, const Rank&) = default;
    friend auto operator<=>(const Rank& a, const Rank& b) { return a.order() <=> b.order(); }
  };
  struct Candidate {
    Rank rank;
    uint64_t last_use = 0;
    int32_t slot = 0;
  };

  // Who leaves first of the experts of one layer and class. Until the layer's next event or a new
  // forecast their ranks by the own estimate only move together, so their order stays.
  struct LayerFirst {
    LayerId layer;
    uint8_t slot_class = 0;
    bool numbered = false;  // rank_numbers_ holds for those who may leave
    bool known = false;     // and so does what follows
    bool nobody = false;
    uint64_t event = 0;          // in which it was found
    uint32_t step_distance = 0;  // StepDistance() then
    Rank rank;                   // of the first, then
    int32_t slot = -1;           // of the first; -1: some of this rank, found when it matters
  };

  struct ClassSlots {
    int32_t first = 0;
    int32_t open = 0;  // the first ones of them
    int32_t used = 0;
    int32_t free_hint = 0;   // no free slot of the class below this one
    int32_t by_use_end = 0;  // of its ring in by_use_
    ShadowLru shadow;
    LeavingExperts leaving;           // by record
    std::vector<size_t> shadow_uses;  // of the event
    uint64_t pass_demand = 0;         // so far in the current pass over the layers
  };

  static bool LeavesLater(const Candidate& a, const Candidate& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.last_use != b.last_use) return a.last_use > b.last_use;
    return a.slot > b.slot;
  }
  void MakeSlots();
  void Predict(Record& record, LayerId layer, uint32_t probability_ppm);
  void ForgetPredictions(LayerId layer);
  size_t Index(ExpertKey key) const;
  ClassSlots& ClassOf(size_t record) {
    return classes_[options_.slot_class.empty() ? 0 : options_.slot_class[record]];
  }
  uint32_t Rate(const Record& record, uint32_t layer_step) const;
  // By the own estimate, from when the layer comes again; see StepDistance().
  Rank OwnRank(const Record& record, LayerId layer, uint32_t prediction_ppm) const;
  Rank RankOf(const Record& record, LayerId layer, uint32_t prediction_ppm) const;
  // A rank as one number above 0; the other way round for the own estimate's.
  static uint32_t RankNumber(const Rank& rank) {
    return (uint32_t{rank.low} << 31 | rank.distance) + 1;
  }
  static Rank RankFromNumber(uint32_t number) {
    return {(number - 1) >> 31 != 0, (number - 1) & INT32_MAX};
  }
  // From the latest event's layer until `layer` comes again, in 1/1024 steps.
  uint32_t StepDistance(LayerId layer) const {
    return step_distance_[static_cast<size_t>(LayerDistance(layer))];
  }
  void Touch(Record& record, uint32_t layer_step, int32_t rows);
  static bool MayLeave(const Slot& slot) {
    return slot.state == SlotState::kReady && slot.pins == 0;
  }
  Candidate CandidateAt(size_t record, const Rank& rank) const {
    return {rank, records_[record].last_use, records_[record].slot};
  }
  void ForgetFirsts();
  void ForgetFirst(LayerId layer);
  LayerFirst& FirstOf(const Slot& slot) {
    return firsts_[slot.key.layer.index() * classes_.size() + slot.slot_class];
  }
  // `slot` may leave from now on.
  void AddCandidate(const Slot& slot);
  // The rank of one who may leave is another one now.
  void RankAgain(const Slot& slot);
  void Offer(LayerFirst* own, const Candidate& candidate);
  bool RanksByItself() const { return forecast_.empty() && !stats_.ranks_by_recency; }
  bool RanksByForecast(LayerId layer) const;
  static Rank RankAt(uint32_t distance) { return {distance > kDistanceUnit, distance}; }
  // Of those of the layer and class that may leave.
  void NumberThose(LayerFirst* own);
  void FindFirst(LayerFirst* own);
  Candidate FindByScan(const LayerFirst& own);
  // The one that leaves first of those with this number. REQUIRES: there is one
  int32_t FirstAt(const LayerFirst& own, std::span<const uint32_t> numbers, uint32_t number) const;
  bool MoveTogether(LayerId layer) const;
  Rank RankNow(const LayerFirst& own) const;
  // The slot of the class that the newcomer gets by eviction; -1: none.
  int32_t Victim(const ClassSlots& own, const Rank& newcomer);
  int32_t OldestSlot(const ClassSlots& own) const;
  void Evict(Slot& slot, bool for_prefetch);
  void EndSpeculativeLoad(const Slot& slot);
  void LinkByUse(int32_t slot);
  void Unlink(int32_t slot);
  // Takes the lowest free slot of the expert's class, or the worst candidate if it ranks after
  // `newcomer`.
  SlotRef Claim(ExpertKey key, const Rank& newcomer, bool may_evict, bool for_prefetch,
                ExpertKey* victim);
  void Release(Slot& slot);
  void CountStep(LayerId layer, std::span<const LayerDemand> demands);
  void CompareWithLru(std::span<const LayerDemand> demands, size_t base);
  Slot& Get(SlotRef ref);
  Status CheckSlots(const ClassSlots& own, int32_t count) const;
  Status CheckFirst(const LayerFirst& own) const;

  ExpertCacheOptions options_;
  std::vector<size_t> layer_base_;        // first record of a layer
  std::vector<int32_t> layer_order_;      // position among the MoE layers; -1: none
  std::vector<uint32_t> layer_steps_;     // events with decode rows so far
  std::vector<uint32_t> step_distance_;   // of 0 .. L layers, in 1/1024 steps
  std::vector<uint8_t> layer_predicted_;  // some of its experts have a prediction
  int32_t moe_layers_ = 0;
  std::vector<Record> records_;
  std::span<const uint32_t> forecast_;  // by record; empty: none
  std::vector<ClassSlots> classes_;
  std::vector<Slot> slots_;
  int32_t open_slots_ = 0;
  int32_t slots_used_ = 0;
  int32_t slots_ready_ = 0;

  bool event_open_ = false;
  LayerId layer_;  // of the latest event
  uint64_t event_ = 0;
  std::vector<DemandDecision> decisions_;
  std::vector<SlotRef> wrong_;
  std::vector<int32_t> miss_order_;
  std::vector<Rank> miss_rank_;
  std::vector<LayerFirst> firsts_;      // by layer and class
  std::vector<uint32_t> rank_numbers_;  // by record, see LayerFirst
  // Slots of a class by their latest use, oldest first, in a ring; entries beyond those of the
  // slots are its ends, one a class. In use as long as plain LRU was asked for and nothing
  // predicted: then no other order can matter.
  struct Neighbours {
    int32_t older = 0;
    int32_t newer = 0;
  };
  std::vector<Neighbours> by_use_;
  bool plain_lru_ = false;
  // By layer: the slots of its prefetched experts that are loading.
  std::vector<std::vector<int32_t>> speculative_loads_;

  ExpertCacheStats stats_;
  Digest digest_;
};

}  // namespace expertflow
