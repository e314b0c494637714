#include "worker/cache/expert_cache.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr uint32_t kOne = 1u << 16;  // Q16
// 2^(-1/h) for half-lives of 3, 10 and 80 steps, Q32; their weights in the mix, in 1/256. Picked
// by hand, not tuned: a replay of a recorded gpt-oss-20b trace (residency .15 to .40, batch 1 and
// 4) only confirmed that they miss less often than LRU.
constexpr std::array<uint64_t, 3> kDecayQ32 = {3408917802u, 4007346185u, 4257914989u};
constexpr std::array<uint32_t, 3> kMix = {64, 128, 64};
constexpr uint32_t kRateFloor = kOne / 4096;
// Beyond this many steps without a use a rate counts as zero.
constexpr uint32_t kDecayTableSize = 1024;

struct DecayTables {
  uint32_t q16[3][kDecayTableSize];
};

constexpr DecayTables MakeDecayTables() {
  DecayTables tables{};
  for (int r = 0; r < 3; ++r) {
    uint64_t decay = uint64_t{1} << 32;
    for (uint32_t n = 0; n < kDecayTableSize; ++n) {
      tables.q16[r][n] = static_cast<uint32_t>(decay >> 16);
      decay = static_cast<uint64_t>((static_cast<unsigned __int128>(decay) * kDecayQ32[r]) >> 32);
    }
  }
  return tables;
}
constexpr DecayTables kDecay = MakeDecayTables();

uint32_t Decayed(uint32_t rate, int index, uint32_t steps) {
  if (steps >= kDecayTableSize) return 0;
  return static_cast<uint32_t>((uint64_t{rate} * kDecay.q16[index][steps]) >> 16);
}

}  // namespace

ExpertCache::ExpertCache(ExpertCacheOptions options) : options_(std::move(options)) {
  size_t total = 0;
  int32_t widest = 0;
  for (int32_t experts : options_.experts) {
    layer_base_.push_back(total);
    layer_order_.push_back(experts > 0 ? moe_layers_++ : -1);
    total += static_cast<size_t>(experts);
    widest = std::max(widest, experts);
  }
  CHECK(options_.block_bytes.size() == total);
  CHECK(options_.slot_class.empty() || options_.slot_class.size() == total);
  CHECK(!options_.slots.empty());
  layer_steps_.assign(options_.experts.size(), 0);
  layer_predicted_.assign(options_.experts.size(), 0);
  speculative_loads_.resize(options_.experts.size());
  for (int32_t l = 0; l <= moe_layers_; ++l) {
    step_distance_.push_back(kDistanceUnit * static_cast<uint32_t>(l) /
                             static_cast<uint32_t>(std::max(moe_layers_, 1)));
  }
  records_.resize(total);
  rank_numbers_.resize(total);
  MakeSlots();
  decisions_.reserve(static_cast<size_t>(widest));
  wrong_.reserve(static_cast<size_t>(widest));
  miss_order_.reserve(static_cast<size_t>(widest));
  miss_rank_.reserve(static_cast<size_t>(widest));
  for (size_t l = 0; l < options_.experts.size(); ++l) {
    for (size_t c = 0; c < classes_.size(); ++c) {
      LayerFirst& own = firsts_.emplace_back();
      own.layer = LayerId(static_cast<int32_t>(l));
      own.slot_class = static_cast<uint8_t>(c);
    }
  }
  stats_.thrashing = open_slots_ < options_.top_k * moe_layers_;
  stats_.ranks_by_recency = options_.ranking == CacheRanking::kRecency;
  plain_lru_ = stats_.ranks_by_recency;
}

void ExpertCache::MakeSlots() {
  for (const uint8_t c : options_.slot_class) CHECK(c < options_.slots.size());
  for (const int32_t slots : options_.slots) {
    CHECK(slots >= 0);
    Slot slot;
    slot.slot_class = static_cast<uint8_t>(classes_.size());
    classes_.push_back({.first = open_slots_,
                        .open = slots,
                        .free_hint = open_slots_,
                        .shadow = ShadowLru(records_.size(), slots),
                        .leaving = LeavingExperts(records_.size())});
    slots_.resize(slots_.size() + static_cast<size_t>(slots), slot);
    open_slots_ += slots;
  }
  const auto end = static_cast<int32_t>(slots_.size());
  for (size_t c = 0; c < classes_.size(); ++c) {
    classes_[c].by_use_end = end + static_cast<int32_t>(c);
    for (int32_t s = 0; s < options_.slots[c]; ++s) {
      by_use_.push_back({classes_[c].by_use_end, classes_[c].by_use_end});
    }
  }
  for (const ClassSlots& c : classes_) by_use_.push_back({c.by_use_end, c.by_use_end});
}

size_t ExpertCache::Index(ExpertKey key) const {
  CHECK(key.layer.valid() && key.layer.index() < layer_base_.size());
  CHECK(key.expert.valid() && key.expert.value < options_.experts[key.layer.index()]);
  return layer_base_[key.layer.index()] + key.expert.index();
}

int32_t ExpertCache::LayerDistance(LayerId layer) const {
  const int32_t now = layer_.valid() ? layer_order_[layer_.index()] : moe_layers_ - 1;
  const int32_t d = layer_order_[layer.index()] - now;
  return d > 0 ? d : d + moe_layers_;
}

uint32_t ExpertCache::Rate(const Record& record, uint32_t layer_step) const {
  uint32_t mixed = 0;
  for (int r = 0; r < kRates; ++r) {
    mixed += kMix[r] * Decayed(record.rates[r], r, layer_step - record.updated);
  }
  return std::max(mixed / 256, kRateFloor);
}

ExpertCache::Rank ExpertCache::RankOf(const Record& record, LayerId layer,
                                      uint32_t prediction_ppm) const {
  if (stats_.ranks_by_recency && prediction_ppm == 0) {
    // All of it is farther than a step: what is predicted for this one comes first.
    const uint64_t ago = (event_ - record.last_use) * kDistanceUnit;
    const uint64_t distance = kDistanceUnit + 1 + ago / static_cast<uint64_t>(moe_layers_);
    return {true, static_cast<uint32_t>(std::min<uint64_t>(distance, UINT32_MAX))};
  }
  if (!forecast_.empty() && prediction_ppm == 0) {
    return RankAt(forecast_[static_cast<size_t>(&record - records_.data())]);
  }
  Rank rank = OwnRank(record, layer, prediction_ppm);
  rank.distance += StepDistance(layer);
  return rank;
}

ExpertCache::Rank ExpertCache::OwnRank(const Record& record, LayerId layer,
                                       uint32_t prediction_ppm) const {
  const uint32_t step = layer_steps_[layer.index()];
  const bool recent = record.last_use > 0 && step - record.updated <= 1;
  const bool high = prediction_ppm >= options_.high_probability_ppm ||
                    (recent && record.rows >= options_.shared_rows);
  // All of this fits 32 bits, whose division is the fast one: it runs once per slot and event.
  const uint32_t rate = std::min(Rate(record, step), kOne);
  const uint32_t next = prediction_ppm > 0
                            ? static_cast<uint32_t>(uint64_t{prediction_ppm} * kOne / 1'000'000)
                            : rate;
  return {!high, kDistanceUnit * (kOne - std::min(next, kOne)) / rate};
}

void ExpertCache::Touch(Record& record, uint32_t layer_step, int32_t rows) {
  for (int r = 0; r < kRates; ++r) {
    const uint32_t kept = Decayed(record.rates[r], r, layer_step - record.updated);
    record.rates[r] = kept + (kOne - kDecay.q16[r][1]);
  }
  record.updated = layer_step;
  record.rows = rows;
  record.last_use = event_;
}

void ExpertCache::ForgetFirsts() {
  for (LayerFirst& own : firsts_) own.known = false;
}

void ExpertCache::ForgetFirst(LayerId layer) {
  const size_t first = layer.index() * classes_.size();
  for (size_t c = 0; c < classes_.size(); ++c) firsts_[first + c].known = false;
}

void ExpertCache::AddCandidate(const Slot& slot) {
  classes_[slot.slot_class].leaving.Set(slot.record, true);
  LayerFirst& own = FirstOf(slot);
  const Record& record = records_[slot.record];
  if (own.numbered) {
    rank_numbers_[slot.record] = RankNumber(OwnRank(record, own.layer, record.prediction_ppm));
  }
  if (!own.known) return;
  // Found in an earlier event, a rank of another kind is not today's.
  if (own.event != event_ && !RanksByItself()) {
    own.known = false;
    return;
  }
  Offer(&own, CandidateAt(slot.record, RankOf(record, own.layer, record.prediction_ppm)));
}

void ExpertCache::RankAgain(const Slot& slot) {
  LayerFirst& own = FirstOf(slot);
  const Record& record = records_[slot.record];
  const uint32_t before = rank_numbers_[slot.record];
  if (own.numbered) {
    rank_numbers_[slot.record] = RankNumber(OwnRank(record, own.layer, record.prediction_ppm));
  }
  if (!own.known) return;
  const Rank first = {own.rank.low, own.rank.distance - own.step_distance};
  if (!RanksByItself() || before == RankNumber(first)) {
    own.known = false;
    return;
  }
  Offer(&own, CandidateAt(slot.record, RankOf(record, own.layer, record.prediction_ppm)));
}

// REQUIRES: own->known
void ExpertCache::Offer(LayerFirst* own, const Candidate& candidate) {
  const Rank first = own->nobody ? Rank{false, 0} : RankNow(*own);
  if (!own->nobody && candidate.rank < first) return;
  const bool alone = own->nobody || candidate.rank > first;
  own->nobody = false;
  own->event = event_;
  own->step_distance = StepDistance(own->layer);
  own->rank = candidate.rank;
  if (alone) {
    own->slot = candidate.slot;
  } else if (RanksByItself()) {
    own->slot = -1;
  } else {
    own->known = false;
  }
}

void ExpertCache::NumberThose(LayerFirst* own) {
  if (own->numbered) return;
  own->numbered = true;
  const size_t layer = own->layer.index();
  const auto experts = static_cast<size_t>(options_.experts[layer]);
  for (const size_t r : classes_[own->slot_class].leaving.Those(layer_base_[layer], experts)) {
    rank_numbers_[r] = RankNumber(OwnRank(records_[r], own->layer, records_[r].prediction_ppm));
  }
}

ExpertCache::Candidate ExpertCache::FindByScan(const LayerFirst& own) {
  const size_t layer = own.layer.index();
  const auto experts = static_cast<size_t>(options_.experts[layer]);
  Candidate first = {.slot = -1};
  for (const size_t r : classes_[own.slot_class].leaving.Those(layer_base_[layer], experts)) {
    const Candidate now =
        CandidateAt(r, RankOf(records_[r], own.layer, records_[r].prediction_ppm));
    if (first.slot < 0 || LeavesLater(first, now)) first = now;
  }
  return first;
}

// Unless something else has to be asked for some of its experts.
bool ExpertCache::RanksByForecast(LayerId layer) const {
  return !forecast_.empty() && !stats_.ranks_by_recency && layer_predicted_[layer.index()] == 0;
}

void ExpertCache::FindFirst(LayerFirst* own) {
  own->known = true;
  own->event = event_;
  own->step_distance = StepDistance(own->layer);
  own->slot = -1;
  const size_t layer = own->layer.index();
  const auto experts = static_cast<size_t>(options_.experts[layer]);
  const LeavingExperts& leaving = classes_[own->slot_class].leaving;
  if (RanksByItself()) {
    NumberThose(own);
    const uint32_t number = leaving.Farthest(rank_numbers_, layer_base_[layer], experts);
    own->nobody = number == 0;
    if (own->nobody) return;
    own->rank = RankFromNumber(number);
    own->rank.distance += own->step_distance;
    return;
  }
  if (RanksByForecast(own->layer)) {
    const uint32_t farthest = leaving.Farthest(forecast_, layer_base_[layer], experts);
    own->nobody = false;
    own->rank = RankAt(farthest);
    if (farthest > 0) return;
  }
  const Candidate first = FindByScan(*own);
  own->nobody = first.slot < 0;
  own->rank = first.rank;
  own->slot = first.slot;
}

// A forecast is of one event, and recency moves on while predictions stand still.
bool ExpertCache::MoveTogether(LayerId layer) const {
  return forecast_.empty() && !(stats_.ranks_by_recency && layer_predicted_[layer.index()] != 0);
}

ExpertCache::Rank ExpertCache::RankNow(const LayerFirst& own) const {
  Rank rank = own.rank;
  if (own.event == event_) return rank;
  if (stats_.ranks_by_recency) {
    return RankOf(records_[slots_[static_cast<size_t>(own.slot)].record], own.layer, 0);
  }
  rank.distance += StepDistance(own.layer) - own.step_distance;
  return rank;
}

// A slot whose latest use is the oldest and which may leave; the lowest of several.
int32_t ExpertCache::OldestSlot(const ClassSlots& own) const {
  int32_t oldest = -1;
  for (int32_t s = by_use_[static_cast<size_t>(own.by_use_end)].newer; s != own.by_use_end;
       s = by_use_[static_cast<size_t>(s)].newer) {
    const Slot& slot = slots_[static_cast<size_t>(s)];
    if (!MayLeave(slot)) continue;
    if (oldest >= 0) {
      const Slot& before = slots_[static_cast<size_t>(oldest)];
      if (records_[slot.record].last_use != records_[before.record].last_use) break;
    }
    oldest = oldest < 0 ? s : std::min(oldest, s);
  }
  return oldest;
}

int32_t ExpertCache::FirstAt(const LayerFirst& own, std::span<const uint32_t> numbers,
                             uint32_t number) const {
  const LeavingExperts& leaving = classes_[own.slot_class].leaving;
  const size_t base = layer_base_[own.layer.index()];
  const size_t end = base + static_cast<size_t>(options_.experts[own.layer.index()]);
  Candidate first = {.slot = -1};
  for (size_t r = base; r < end; ++r) {
    if (numbers[r] != number || !leaving.MayLeave(r)) continue;
    const Candidate now = CandidateAt(r, own.rank);
    if (first.slot < 0 || LeavesLater(first, now)) first = now;
  }
  return first.slot;
}

int32_t ExpertCache::Victim(const ClassSlots& own, const Rank& newcomer) {
  // Nobody ranks after a newcomer that is not expected at all.
  if (newcomer == Rank{true, UINT32_MAX}) return -1;
  if (slots_ready_ == 0) return -1;
  if (plain_lru_) return OldestSlot(own);
  Candidate worst;
  LayerFirst* from = nullptr;  // of `worst`
  const size_t classes = classes_.size();
  for (auto at = static_cast<size_t>(&own - classes_.data()); at < firsts_.size(); at += classes) {
    LayerFirst& layer = firsts_[at];
    if (!layer.known || (layer.event != event_ && !MoveTogether(layer.layer))) FindFirst(&layer);
    if (layer.nobody) continue;
    const Rank rank = RankNow(layer);
    if (from != nullptr && rank < worst.rank) continue;
    if (layer.slot < 0) {
      const uint32_t distance = layer.rank.distance - layer.step_distance;
      layer.slot = RanksByItself()
                       ? FirstAt(layer, rank_numbers_, RankNumber({layer.rank.low, distance}))
                       : FirstAt(layer, forecast_, layer.rank.distance);
    }
    const Candidate now = CandidateAt(slots_[static_cast<size_t>(layer.slot)].record, rank);
    if (from != nullptr && !LeavesLater(worst, now)) continue;
    worst = now;
    from = &layer;
  }
  if (from == nullptr || !(worst.rank > newcomer)) return -1;
  from->known = false;
  return worst.slot;
}

void ExpertCache::Evict(Slot& slot, bool for_prefetch) {
  ++stats_.evictions;
  if (for_prefetch) {
    records_[slot.record].regret_step = layer_steps_[slot.key.layer.index()] + 1;
  }
  if (slot.speculative) stats_.bytes_wasted += options_.block_bytes[Index(slot.key)];
  --slots_ready_;
  Release(slot);
}

SlotRef ExpertCache::Claim(ExpertKey key, const Rank& newcomer, bool may_evict, bool for_prefetch,
                           ExpertKey* victim) {
  *victim = ExpertKey{};
  const size_t record = Index(key);
  ClassSlots& own = ClassOf(record);
  int32_t chosen = -1;
  if (own.used < own.open) {
    chosen = own.free_hint;
    while (slots_[static_cast<size_t>(chosen)].state != SlotState::kFree) ++chosen;
    own.free_hint = chosen + 1;
  } else if (may_evict) {
    chosen = Victim(own, newcomer);
    if (chosen >= 0) {
      *victim = slots_[static_cast<size_t>(chosen)].key;
      Evict(slots_[static_cast<size_t>(chosen)], for_prefetch);
    }
  }
  if (chosen < 0) return {};
  Slot& slot = slots_[static_cast<size_t>(chosen)];
  CHECK(slot.state == SlotState::kFree);
  slot.key = key;
  slot.record = record;
  slot.state = SlotState::kLoading;
  slot.pins = 0;
  slot.speculative = for_prefetch;
  if (for_prefetch) speculative_loads_[key.layer.index()].push_back(chosen);
  ++slot.generation;
  ++slots_used_;
  ++own.used;
  records_[record].slot = chosen;
  LinkByUse(chosen);
  return {SlotId(chosen), slot.generation};
}

void ExpertCache::EndSpeculativeLoad(const Slot& slot) {
  std::vector<int32_t>& loads = speculative_loads_[slot.key.layer.index()];
  std::erase(loads, static_cast<int32_t>(&slot - slots_.data()));
}

void ExpertCache::LinkByUse(int32_t slot) {
  if (!plain_lru_) return;
  Unlink(slot);
  const auto last_use = [&](int32_t s) {
    return records_[slots_[static_cast<size_t>(s)].record].last_use;
  };
  // Used now, or, as what only prompts want, so long ago that the place is near the oldest.
  const int32_t end = by_use_[static_cast<size_t>(slot)].older;  // in no list any more
  int32_t newer = end;
  if (last_use(slot) < event_) {
    newer = by_use_[static_cast<size_t>(end)].newer;
    while (newer != end && last_use(newer) < last_use(slot)) {
      newer = by_use_[static_cast<size_t>(newer)].newer;
    }
  }
  const int32_t older = by_use_[static_cast<size_t>(newer)].older;
  by_use_[static_cast<size_t>(slot)] = {older, newer};
  by_use_[static_cast<size_t>(older)].newer = slot;
  by_use_[static_cast<size_t>(newer)].older = slot;
}

// A slot that is in no list is its own neighbour on neither side: both are the end, which then
// stays as it is.
void ExpertCache::Unlink(int32_t slot) {
  Neighbours& own = by_use_[static_cast<size_t>(slot)];
  // One class, nearly always: its end without a look at the slot.
  const int32_t end = classes_.size() == 1
                          ? static_cast<int32_t>(by_use_.size()) - 1
                          : classes_[slots_[static_cast<size_t>(slot)].slot_class].by_use_end;
  const bool linked =
      own.older != end || own.newer != end || by_use_[static_cast<size_t>(end)].newer == slot;
  if (!linked) return;
  by_use_[static_cast<size_t>(own.older)].newer = own.newer;
  by_use_[static_cast<size_t>(own.newer)].older = own.older;
  own = {end, end};
}

void ExpertCache::Release(Slot& slot) {
  if (slot.state == SlotState::kLoading && slot.speculative) EndSpeculativeLoad(slot);
  records_[slot.record].slot = -1;
  classes_[slot.slot_class].leaving.Set(slot.record, false);
  slot.key = {};
  slot.state = SlotState::kFree;
  slot.pins = 0;
  slot.speculative = false;
  ClassSlots& own = classes_[slot.slot_class];
  --slots_used_;
  --own.used;
  const auto number = static_cast<int32_t>(&slot - slots_.data());
  if (plain_lru_) Unlink(number);
  own.free_hint = std::min(own.free_hint, number);
}

std::span<const SlotRef> ExpertCache::WrongPrefetches(LayerId layer,
                                                      std::span<const LayerDemand> demands) {
  wrong_.clear();
  const std::vector<int32_t>& loads = speculative_loads_[layer.index()];
  if (loads.empty()) return wrong_;
  const bool decodes = std::any_of(demands.begin(), demands.end(),
                                   [](const LayerDemand& d) { return d.decode_rows > 0; });
  if (!decodes) return wrong_;
  for (const int32_t s : loads) {
    const Slot& slot = slots_[static_cast<size_t>(s)];
    const auto asked = std::lower_bound(
        demands.begin(), demands.end(), slot.key.expert,
        [](const LayerDemand& d, ExpertId expert) { return d.expert.value < expert.value; });
    if (asked != demands.end() && asked->expert == slot.key.expert) continue;
    wrong_.push_back({SlotId(s), slot.generation});
  }
  // In the order of the experts.
  std::sort(wrong_.begin(), wrong_.end(), [&](const SlotRef& a, const SlotRef& b) {
    return KeyOf(a.slot).expert.value < KeyOf(b.slot).expert.value;
  });
  return wrong_;
}

void ExpertCache::UseForecast(std::span<const uint32_t> distance) {
  CHECK(distance.empty() || distance.size() == records_.size());
  if (!distance.empty() || !forecast_.empty()) ForgetFirsts();
  forecast_ = distance;
}

std::span<const DemandDecision> ExpertCache::BeginLayer(LayerId layer,
                                                        std::span<const LayerDemand> demands) {
  CHECK(!event_open_);
  CHECK(layer.valid() && layer.index() < layer_base_.size() && layer_order_[layer.index()] >= 0);
  event_open_ = true;
  layer_ = layer;
  ++event_;
  ForgetFirst(layer);
  decisions_.clear();
  miss_order_.clear();
  miss_rank_.clear();
  digest_.Fold(uint64_t{1} << 56 | static_cast<uint64_t>(layer_order_[layer.index()]));

  const bool decodes = std::any_of(demands.begin(), demands.end(),
                                   [](const LayerDemand& d) { return d.decode_rows > 0; });
  uint32_t& step = layer_steps_[layer.index()];
  if (decodes) {
    ++step;
    CountStep(layer, demands);
    ForgetPredictions(layer);
    const size_t first = layer.index() * classes_.size();
    for (size_t c = 0; c < classes_.size(); ++c) firsts_[first + c].numbered = false;
  }

  int32_t previous = -1;
  for (const LayerDemand& demand : demands) {
    CHECK(demand.expert.value > previous);
    previous = demand.expert.value;
    const ExpertKey key{layer, demand.expert};
    Record& record = records_[Index(key)];
    const bool regretted = record.regret_step == step && decodes && demand.decode_rows > 0;
    if (demand.decode_rows > 0) Touch(record, step, demand.decode_rows);
    DemandDecision decision;
    decision.key = key;
    if (record.slot >= 0) {
      Slot& slot = slots_[static_cast<size_t>(record.slot)];
      const bool ready = slot.state == SlotState::kReady;
      decision.outcome = ready ? DemandOutcome::kHit : DemandOutcome::kLateHit;
      decision.slot = {SlotId(record.slot), slot.generation};
      ++slot.pins;
      ClassOf(slot.record).leaving.Set(slot.record, false);
      ++(ready ? stats_.hits : stats_.late_hits);
      if (demand.decode_rows > 0) LinkByUse(record.slot);
      if (slot.speculative) {
        if (!ready) EndSpeculativeLoad(slot);
        slot.speculative = false;
        ++(ready ? stats_.prefetch_hits : stats_.prefetch_late_hits);
        stats_.bytes_prefetch_used += options_.block_bytes[Index(key)];
      }
    } else {
      ++stats_.misses;
      stats_.bytes_demand += options_.block_bytes[Index(key)];
      if (regretted) {
        ++stats_.prefetch_regrets;
        stats_.bytes_regret += options_.block_bytes[Index(key)];
      }
      miss_order_.push_back(static_cast<int32_t>(decisions_.size()));
    }
    decisions_.push_back(decision);
  }

  // Misses take slots in the order of their own expected next use, prompt-only ones last.
  for (int32_t i : miss_order_) {
    miss_rank_.push_back(RankOf(records_[Index(decisions_[static_cast<size_t>(i)].key)], layer, 0));
  }
  std::vector<int32_t>& order = miss_order_;
  const auto place = [&](size_t from, bool prefill_only) {
    for (size_t n = from; n < order.size(); ++n) {
      const auto i = static_cast<size_t>(order[n]);
      DemandDecision& decision = decisions_[i];
      if ((demands[i].decode_rows == 0) != prefill_only) continue;
      decision.slot = Claim(decision.key, miss_rank_[n], !prefill_only, false, &decision.victim);
      if (decision.slot.valid()) {
        decision.outcome = DemandOutcome::kLoad;
        ++slots_[decision.slot.slot.index()].pins;
      } else {
        ++stats_.bypasses;
      }
    }
  };
  for (size_t a = 1; a < order.size(); ++a) {  // insertion sort: short, stable, no allocation
    for (size_t b = a; b > 0 && miss_rank_[b] < miss_rank_[b - 1]; --b) {
      std::swap(miss_rank_[b], miss_rank_[b - 1]);
      std::swap(order[b], order[b - 1]);
    }
  }
  place(0, false);
  place(0, true);

  if (decodes && options_.ranking == CacheRanking::kGuarded)
    CompareWithLru(demands, layer_base_[layer.index()]);
  for (const DemandDecision& d : decisions_) {
    digest_.Fold(static_cast<uint64_t>(d.key.expert.value) << 40 |
                 static_cast<uint64_t>(d.outcome) << 32 | static_cast<uint32_t>(d.slot.slot.value));
  }
  return decisions_;
}

// Behind LRU by more than half a percent, and by more than starting or changing over may cost: rank
// as LRU does, until the lead has melted to a quarter of a percent.
void ExpertCache::CompareWithLru(std::span<const LayerDemand> demands, size_t base) {
  for (ClassSlots& own : classes_) own.shadow_uses.clear();
  for (size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].decode_rows == 0) continue;
    const size_t record = base + demands[i].expert.index();
    ClassOf(record).shadow_uses.push_back(record);
    const DemandOutcome outcome = decisions_[i].outcome;
    const bool missed = outcome == DemandOutcome::kLoad || outcome == DemandOutcome::kBypass;
    stats_.decode_misses += missed ? 1 : 0;
  }
  for (ClassSlots& own : classes_) {
    stats_.lru_misses += static_cast<uint64_t>(own.shadow.OnEvent(own.shadow_uses));
  }
  const uint64_t lru = stats_.lru_misses;
  if (stats_.ranks_by_recency) {
    stats_.ranks_by_recency = stats_.decode_misses > lru + lru / 400;
    if (!stats_.ranks_by_recency) ForgetFirsts();
  } else if (stats_.decode_misses > lru + lru / 200 + static_cast<uint64_t>(open_slots_) / 2 + 16) {
    stats_.ranks_by_recency = true;
    ForgetFirsts();
    ++stats_.lru_switches;
    digest_.Fold(uint64_t{8} << 56 | event_);
  }
}

void ExpertCache::CountStep(LayerId layer, std::span<const LayerDemand> demands) {
  const size_t base = layer_base_[layer.index()];
  for (const LayerDemand& demand : demands) {
    if (demand.decode_rows > 0) ++ClassOf(base + demand.expert.index()).pass_demand;
  }
  if (layer_order_[layer.index()] != moe_layers_ - 1) return;
  stats_.demand_per_step = 0;
  stats_.thrashing = open_slots_ < options_.top_k * moe_layers_;
  for (ClassSlots& own : classes_) {
    const uint64_t demand = std::exchange(own.pass_demand, 0);
    stats_.demand_per_step += demand;
    stats_.thrashing = stats_.thrashing || static_cast<uint64_t>(own.open) < demand;
  }
}

void ExpertCache::EndLayer() {
  CHECK(event_open_);
  event_open_ = false;
  for (const DemandDecision& decision : decisions_) {
    if (!decision.slot.valid()) continue;
    Slot& slot = slots_[decision.slot.slot.index()];
    // A failed load took the pin with it.
    if (slot.generation != decision.slot.generation || slot.pins == 0) continue;
    --slot.pins;
    if (MayLeave(slot)) AddCandidate(slot);
  }
  digest_.Fold(uint64_t{2} << 56);
}

void ExpertCache::Predict(Record& record, LayerId layer, uint32_t probability_ppm) {
  record.prediction_ppm = std::max(probability_ppm, 1u);
  plain_lru_ = false;
  // The first one of a layer turns what is known of it into something of another kind.
  if (layer_predicted_[layer.index()] == 0 && !RanksByItself()) ForgetFirst(layer);
  layer_predicted_[layer.index()] = 1;
  if (record.slot >= 0 && MayLeave(slots_[static_cast<size_t>(record.slot)])) {
    RankAgain(slots_[static_cast<size_t>(record.slot)]);
  }
}

void ExpertCache::ForgetPredictions(LayerId layer) {
  if (layer_predicted_[layer.index()] == 0) return;
  layer_predicted_[layer.index()] = 0;
  const size_t base = layer_base_[layer.index()];
  const auto count = static_cast<size_t>(options_.experts[layer.index()]);
  for (size_t e = base; e < base + count; ++e) records_[e].prediction_ppm = 0;
}

PrefetchDecision ExpertCache::TryPrefetch(ExpertKey key, uint32_t probability_ppm) {
  PrefetchDecision decision;
  plain_lru_ = false;
  Record& record = records_[Index(key)];
  if (record.slot < 0) {
    decision.slot = Claim(key, RankOf(record, key.layer, std::max(probability_ppm, 1u)), true, true,
                          &decision.victim);
  }
  if (decision.slot.valid()) {
    Predict(record, key.layer, probability_ppm);
    ++stats_.prefetches;
  } else {
    ++stats_.prefetch_refusals;
  }
  digest_.Fold(uint64_t{3} << 56 | Index(key) << 32 |
               static_cast<uint32_t>(decision.slot.slot.value));
  return decision;
}

void ExpertCache::NotePrediction(ExpertKey key, uint32_t probability_ppm) {
  Predict(records_[Index(key)], key.layer, probability_ppm);
  digest_.Fold(uint64_t{4} << 56 | Index(key) << 32 | probability_ppm);
}

ExpertCache::Slot& ExpertCache::Get(SlotRef ref) {
  CHECK(ref.valid() && ref.slot.index() < slots_.size());
  Slot& slot = slots_[ref.slot.index()];
  CHECK(slot.generation == ref.generation && slot.state == SlotState::kLoading);
  return slot;
}

bool ExpertCache::CloseSlots(int32_t count) {
  CHECK(!event_open_ && count >= 0);
  ClassSlots& own = classes_.back();
  if (count > own.open) return false;
  const auto closing = std::span(slots_).subspan(static_cast<size_t>(open_slots_ - count),
                                                 static_cast<size_t>(count));
  for (const Slot& slot : closing) {
    if (slot.state != SlotState::kFree && !MayLeave(slot)) return false;
  }
  for (Slot& slot : closing) {
    if (slot.state == SlotState::kFree) continue;
    ForgetFirst(slot.key.layer);
    Evict(slot, false);
  }
  open_slots_ -= count;
  own.open -= count;
  own.shadow.SetSlots(own.open);
  digest_.Fold(uint64_t{9} << 56 | static_cast<uint64_t>(open_slots_));
  return true;
}

void ExpertCache::OpenSlots(int32_t count) {
  ClassSlots& own = classes_.back();
  CHECK(!event_open_ && count >= 0 && count <= options_.slots.back() - own.open);
  open_slots_ += count;
  own.open += count;
  own.shadow.SetSlots(own.open);
  digest_.Fold(uint64_t{10} << 56 | static_cast<uint64_t>(open_slots_));
}

void ExpertCache::OnLoaded(SlotRef ref) {
  Slot& slot = Get(ref);
  slot.state = SlotState::kReady;
  ++slots_ready_;
  if (slot.speculative) {
    stats_.bytes_prefetch += options_.block_bytes[Index(slot.key)];
    EndSpeculativeLoad(slot);
  }
  if (MayLeave(slot)) AddCandidate(slot);
  digest_.Fold(uint64_t{5} << 56 | static_cast<uint64_t>(ref.slot.value));
}

void ExpertCache::OnLoadFailed(SlotRef ref) {
  ++stats_.load_failures;
  Release(Get(ref));
  digest_.Fold(uint64_t{6} << 56 | static_cast<uint64_t>(ref.slot.value));
}

void ExpertCache::OnPrefetchCancelled(SlotRef ref, uint64_t arrived_bytes) {
  Slot& slot = Get(ref);
  CHECK(slot.speculative && slot.pins == 0);
  ++stats_.prefetch_cancelled;
  stats_.bytes_prefetch += arrived_bytes;
  stats_.bytes_wasted += arrived_bytes;
  Release(slot);
  digest_.Fold(uint64_t{7} << 56 | static_cast<uint64_t>(ref.slot.value));
}

SlotState ExpertCache::StateOf(ExpertKey key) const {
  const int32_t s = records_[Index(key)].slot;
  return s < 0 ? SlotState::kFree : slots_[static_cast<size_t>(s)].state;
}

SlotRef ExpertCache::SlotOf(ExpertKey key) const {
  const int32_t s = records_[Index(key)].slot;
  return s < 0 ? SlotRef{} : SlotRef{SlotId(s), slots_[static_cast<size_t>(s)].generation};
}

bool ExpertCache::IsSpeculative(SlotRef ref) const {
  CHECK(ref.valid() && ref.slot.index() < slots_.size());
  const Slot& slot = slots_[ref.slot.index()];
  CHECK(slot.generation == ref.generation && slot.state != SlotState::kFree);
  return slot.speculative;
}

}  // namespace expertflow
