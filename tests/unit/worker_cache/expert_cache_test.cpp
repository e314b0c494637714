#include "worker/cache/expert_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace expertflow {
namespace {

ExpertCacheOptions Options(int32_t layers, int32_t experts, int32_t top_k, int32_t slots) {
  ExpertCacheOptions options;
  options.experts.assign(static_cast<size_t>(layers), experts);
  options.block_bytes.assign(static_cast<size_t>(layers * experts), 1000);
  options.top_k = top_k;
  options.slots = {slots};
  return options;
}

std::vector<LayerDemand> Decode(std::initializer_list<int32_t> experts) {
  std::vector<LayerDemand> demands;
  for (int32_t e : experts) demands.push_back({ExpertId(e), 1, 0});
  return demands;
}

std::vector<LayerDemand> Prefill(std::initializer_list<int32_t> experts) {
  std::vector<LayerDemand> demands;
  for (int32_t e : experts) demands.push_back({ExpertId(e), 0, 8});
  return demands;
}

// An event whose loads succeed at once.
std::vector<DemandDecision> RunEvent(ExpertCache& cache, int32_t layer,
                                     const std::vector<LayerDemand>& demands) {
  const auto decisions = cache.BeginLayer(LayerId(layer), demands);
  std::vector<DemandDecision> copy(decisions.begin(), decisions.end());
  for (const DemandDecision& d : copy) {
    if (d.outcome == DemandOutcome::kLoad) cache.OnLoaded(d.slot);
  }
  cache.EndLayer();
  EXPECT_TRUE(cache.CheckInvariants().ok()) << cache.CheckInvariants().ToString();
  return copy;
}

int CountOutcome(const std::vector<DemandDecision>& decisions, DemandOutcome outcome) {
  return static_cast<int>(std::count_if(decisions.begin(), decisions.end(),
                                        [&](const auto& d) { return d.outcome == outcome; }));
}

TEST(ExpertCache, LoadsThenHits) {
  ExpertCache cache(Options(2, 4, 2, 4));
  EXPECT_EQ(CountOutcome(RunEvent(cache, 0, Decode({1, 3})), DemandOutcome::kLoad), 2);
  EXPECT_EQ(CountOutcome(RunEvent(cache, 0, Decode({1, 3})), DemandOutcome::kHit), 2);
  EXPECT_EQ(cache.stats().hits, 2u);
  EXPECT_EQ(cache.stats().misses, 2u);
  EXPECT_EQ(cache.stats().bytes_demand, 2000u);
  EXPECT_EQ(cache.slots_used(), 2);
}

TEST(ExpertCache, FIELD_06_ExpertsOfTheOpenEventAreNeverVictims) {
  // Two slots, three experts in one event: the third goes past the cache instead of evicting one
  // that the same event is about to use.
  ExpertCache cache(Options(1, 8, 3, 2));
  const auto decisions = RunEvent(cache, 0, Decode({0, 1, 2}));
  EXPECT_EQ(CountOutcome(decisions, DemandOutcome::kLoad), 2);
  EXPECT_EQ(CountOutcome(decisions, DemandOutcome::kBypass), 1);
  EXPECT_EQ(cache.stats().evictions, 0u);
  // A hit of the event is pinned, too, however much better the newcomers are.
  for (int i = 0; i < 50; ++i) RunEvent(cache, 0, Decode({5, 6, 7}));
  const auto mixed = RunEvent(cache, 0, Decode({0, 1, 5, 6, 7}));
  for (const DemandDecision& d : mixed) {
    for (const DemandDecision& other : mixed) {
      EXPECT_FALSE(d.victim == other.key) << "expert " << other.key.expert.value;
    }
  }
}

TEST(ExpertCache, FIELD_08_LoadingSlotIsNeverVictim) {
  ExpertCache cache(Options(1, 8, 1, 1));
  const auto first = cache.BeginLayer(LayerId(0), Decode({0}));
  ASSERT_EQ(first[0].outcome, DemandOutcome::kLoad);
  const SlotRef loading = first[0].slot;
  cache.EndLayer();
  for (int i = 0; i < 20; ++i) {
    const auto next = cache.BeginLayer(LayerId(0), Decode({1}));
    EXPECT_EQ(next[0].outcome, DemandOutcome::kBypass);
    EXPECT_FALSE(cache.TryPrefetch({LayerId(0), ExpertId(2)}, 1'000'000).slot.valid());
    cache.EndLayer();
  }
  cache.OnLoaded(loading);
  const auto after = cache.BeginLayer(LayerId(0), Decode({1}));
  EXPECT_EQ(after[0].outcome, DemandOutcome::kLoad);
  EXPECT_EQ(after[0].victim, (ExpertKey{LayerId(0), ExpertId(0)}));
  EXPECT_NE(after[0].slot.generation, loading.generation);
  cache.EndLayer();
  EXPECT_TRUE(cache.CheckInvariants().ok());
}

TEST(ExpertCache, FIELD_11_FIELD_12_NoSlotsAndAllSlots) {
  ExpertCache none(Options(3, 4, 2, 0));
  ExpertCache all(Options(3, 4, 2, 12));
  for (int step = 0; step < 5; ++step) {
    for (int l = 0; l < 3; ++l) {
      EXPECT_EQ(CountOutcome(RunEvent(none, l, Decode({0, 2})), DemandOutcome::kBypass), 2);
      RunEvent(all, l, step % 2 == 0 ? Decode({0, 2}) : Decode({1, 3}));
    }
  }
  EXPECT_EQ(none.stats().hits, 0u);
  EXPECT_EQ(none.stats().bypasses, none.stats().misses);
  EXPECT_EQ(all.stats().misses, 12u);
  EXPECT_EQ(all.stats().evictions, 0u);
  EXPECT_TRUE(all.AllResident());
}

TEST(ExpertCache, FIELD_22_BudgetBelowOneTokenKeepsStableSubset) {
  // 24 layers need 96 experts a token; there are 20 slots. An LRU would hit never and move
  // everything; a stable subset serves its share without evictions.
  ExpertCache cache(Options(24, 32, 4, 20));
  EXPECT_TRUE(cache.stats().thrashing);
  for (int step = 0; step < 200; ++step) {
    for (int l = 0; l < 24; ++l) RunEvent(cache, l, Decode({1, 5, 9, 30}));
  }
  EXPECT_TRUE(cache.stats().thrashing);
  EXPECT_EQ(cache.stats().demand_per_step, 96u);
  EXPECT_EQ(cache.stats().hits, 20u * 199u);
  EXPECT_LT(cache.stats().evictions, 20u);

  ExpertCache enough(Options(24, 32, 4, 96));
  for (int l = 0; l < 24; ++l) RunEvent(enough, l, Decode({1, 5, 9, 30}));
  EXPECT_FALSE(enough.stats().thrashing);
}

TEST(ExpertCache, FIELD_23_PrefillSweepDoesNotEvictDecodeWorkingSet) {
  ExpertCache cache(Options(2, 8, 2, 5));
  for (int step = 0; step < 4; ++step) {
    RunEvent(cache, 0, Decode({0, 1}));
    RunEvent(cache, 1, Decode({0, 1}));
  }
  for (int chunk = 0; chunk < 10; ++chunk) {
    for (int l = 0; l < 2; ++l) RunEvent(cache, l, Prefill({0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_EQ(cache.stats().evictions, 0u);
  EXPECT_EQ(cache.slots_used(), 5);  // a free slot may be used
  EXPECT_EQ(CountOutcome(RunEvent(cache, 0, Decode({0, 1})), DemandOutcome::kHit), 2);
  EXPECT_EQ(CountOutcome(RunEvent(cache, 1, Decode({0, 1})), DemandOutcome::kHit), 2);
}

TEST(ExpertCache, FIELD_23_PrefillNeverEvictsHoweverHotItsExpert) {
  ExpertCache cache(Options(1, 4, 1, 1));
  const SlotRef loading = cache.BeginLayer(LayerId(0), Decode({0}))[0].slot;
  cache.EndLayer();
  for (int i = 0; i < 20; ++i) RunEvent(cache, 0, Decode({1}));  // the slot is not to be had
  cache.OnLoaded(loading);
  EXPECT_EQ(RunEvent(cache, 0, Prefill({1}))[0].outcome, DemandOutcome::kBypass);
  EXPECT_EQ(RunEvent(cache, 0, Decode({1}))[0].outcome, DemandOutcome::kLoad);
}

TEST(ExpertCache, VictimIsTheOneNeededLast) {
  // Equal rates: of the layers ahead the farthest gives way; the layer cycle makes plain LRU take
  // the one that comes next.
  ExpertCache cache(Options(4, 4, 1, 4));
  for (int step = 0; step < 30; ++step) {
    for (int l = 0; l < 4; ++l) RunEvent(cache, l, Decode({0}));
  }
  cache.BeginLayer(LayerId(0), Decode({0}));
  const PrefetchDecision decision = cache.TryPrefetch({LayerId(1), ExpertId(1)}, 1'000'000);
  ASSERT_TRUE(decision.slot.valid());
  EXPECT_EQ(decision.victim, (ExpertKey{LayerId(3), ExpertId(0)}));
  cache.OnLoaded(decision.slot);
  cache.EndLayer();
}

TEST(ExpertCache, FIELD_28_PrefetchEvictsOnlyLessExpected) {
  ExpertCache cache(Options(2, 4, 2, 2));
  for (int step = 0; step < 40; ++step) RunEvent(cache, 0, Decode({0, 1}));
  cache.BeginLayer(LayerId(0), Decode({0, 1}));
  // Both slots are pinned.
  EXPECT_FALSE(cache.TryPrefetch({LayerId(1), ExpertId(0)}, 900'000).slot.valid());
  cache.EndLayer();
  EXPECT_FALSE(cache.TryPrefetch({LayerId(1), ExpertId(0)}, 50'000).slot.valid());
  EXPECT_TRUE(cache.TryPrefetch({LayerId(1), ExpertId(0)}, 900'000).slot.valid());
  EXPECT_EQ(cache.stats().prefetch_refusals, 2u);
}

TEST(ExpertCache, PrefetchLifeCycleIsAccounted) {
  ExpertCache cache(Options(2, 8, 2, 8));
  RunEvent(cache, 0, Decode({0}));
  const auto late = cache.TryPrefetch({LayerId(1), ExpertId(0)}, 800'000);
  const auto ready = cache.TryPrefetch({LayerId(1), ExpertId(1)}, 800'000);
  const auto wrong = cache.TryPrefetch({LayerId(1), ExpertId(2)}, 800'000);
  const auto unused = cache.TryPrefetch({LayerId(1), ExpertId(3)}, 800'000);
  cache.OnLoaded(ready.slot);
  cache.OnLoaded(unused.slot);
  const auto demands = Decode({0, 1});
  const auto cancel = cache.WrongPrefetches(LayerId(1), demands);
  ASSERT_EQ(cancel.size(), 1u);
  EXPECT_EQ(cancel[0], wrong.slot);
  EXPECT_TRUE(cache.IsSpeculative(wrong.slot));
  cache.OnPrefetchCancelled(wrong.slot, 300);
  const auto decisions = cache.BeginLayer(LayerId(1), demands);
  EXPECT_EQ(decisions[0].outcome, DemandOutcome::kLateHit);
  EXPECT_EQ(decisions[1].outcome, DemandOutcome::kHit);
  EXPECT_FALSE(cache.IsSpeculative(late.slot));
  cache.OnLoaded(late.slot);
  cache.EndLayer();
  EXPECT_EQ(cache.stats().prefetches, 4u);
  EXPECT_EQ(cache.stats().prefetch_hits, 1u);
  EXPECT_EQ(cache.stats().prefetch_late_hits, 1u);
  EXPECT_EQ(cache.stats().prefetch_cancelled, 1u);
  EXPECT_EQ(cache.stats().bytes_wasted, 300u);
  // A prefill event is no verdict on what was predicted for decode.
  cache.TryPrefetch({LayerId(1), ExpertId(4)}, 800'000);
  EXPECT_TRUE(cache.WrongPrefetches(LayerId(1), Prefill({0})).empty());
}

TEST(ExpertCache, FailedLoadOfTheOpenEventFreesItsSlot) {
  ExpertCache cache(Options(1, 4, 2, 2));
  const auto decisions = cache.BeginLayer(LayerId(0), Decode({0, 1}));
  cache.OnLoadFailed(decisions[0].slot);
  EXPECT_TRUE(cache.CheckInvariants().ok()) << cache.CheckInvariants().ToString();
  // Somebody else takes the slot before the event ends; its pin count must not be touched.
  const auto prefetch = cache.TryPrefetch({LayerId(0), ExpertId(3)}, 900'000);
  ASSERT_TRUE(prefetch.slot.valid());
  cache.OnLoaded(decisions[1].slot);
  cache.EndLayer();
  EXPECT_TRUE(cache.CheckInvariants().ok()) << cache.CheckInvariants().ToString();
  EXPECT_EQ(cache.StateOf({LayerId(0), ExpertId(0)}), SlotState::kFree);
  EXPECT_EQ(cache.stats().load_failures, 1u);
}

TEST(ExpertCache, RegretOfAPrefetchIsCounted) {
  ExpertCache cache(Options(2, 4, 1, 1));
  RunEvent(cache, 0, Decode({0}));
  const auto prefetch = cache.TryPrefetch({LayerId(1), ExpertId(0)}, 1'000'000);
  ASSERT_TRUE(prefetch.slot.valid());
  EXPECT_EQ(prefetch.victim, (ExpertKey{LayerId(0), ExpertId(0)}));
  cache.OnLoaded(prefetch.slot);
  RunEvent(cache, 1, Decode({1}));
  RunEvent(cache, 0, Decode({0}));
  EXPECT_EQ(cache.stats().prefetch_regrets, 1u);
  EXPECT_EQ(cache.stats().bytes_regret, 1000u);
}

// Deterministic and the same on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint32_t Below(uint32_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state_ >> 33) % n);
  }

 private:
  uint64_t state_;
};

// The classes of 48 experts, drawn.
std::vector<uint8_t> RandomClasses(uint64_t seed, uint32_t classes) {
  Random random(seed + 2000);
  std::vector<uint8_t> drawn(48);
  for (uint8_t& c : drawn) c = static_cast<uint8_t>(random.Below(classes));
  return drawn;
}

// Events in any order that a driver may produce, invariants after each.
uint64_t RandomEvents(uint64_t seed, int events, const std::vector<int32_t>& slots,
                      CacheRanking ranking = CacheRanking::kGuarded, bool forecasts = false,
                      bool closes = false, std::vector<uint8_t> slot_class = {}) {
  Random random(seed);
  Random of_forecast(seed + 1000);
  std::vector<uint32_t> forecast(48);
  ExpertCacheOptions options = Options(5, 12, 3, 0);
  options.slots = slots;
  options.slot_class = std::move(slot_class);
  options.experts[2] = 0;  // a dense layer
  options.block_bytes.resize(48);
  options.ranking = ranking;
  ExpertCache cache(options);
  std::vector<SlotRef> loading;
  int32_t layer = -1;
  bool open = false;
  const auto any_layer = [&] {
    int32_t l = static_cast<int32_t>(random.Below(4));
    return l >= 2 ? l + 1 : l;
  };
  for (int i = 0; i < events; ++i) {
    const uint32_t what = random.Below(10);
    if (what < 4) {
      if (open) {
        cache.EndLayer();
        open = false;
      } else {
        do {
          layer = (layer + 1) % 5;
        } while (layer == 2);
        std::vector<LayerDemand> demands;
        const bool prefill = random.Below(8) == 0;
        for (int32_t e = 0; e < 12; ++e) {
          if (random.Below(prefill ? 2 : 4) != 0) continue;
          const auto rows = static_cast<int32_t>(1 + random.Below(5));
          demands.push_back({ExpertId(e), prefill ? 0 : rows, prefill ? rows : 0});
        }
        for (const SlotRef ref : cache.WrongPrefetches(LayerId(layer), demands)) {
          if (random.Below(3) == 0) continue;  // the driver may not be able to
          cache.OnPrefetchCancelled(ref, random.Below(1000));
          std::erase(loading, ref);
        }
        if (forecasts) {
          for (uint32_t& distance : forecast) distance = of_forecast.Below(5000);
          cache.UseForecast(of_forecast.Below(4) == 0 ? std::span<const uint32_t>() : forecast);
        }
        for (const DemandDecision& d : cache.BeginLayer(LayerId(layer), demands)) {
          if (d.outcome == DemandOutcome::kLoad) loading.push_back(d.slot);
        }
        open = true;
      }
    } else if (what < 6) {
      const ExpertKey key{LayerId(any_layer()), ExpertId(static_cast<int32_t>(random.Below(12)))};
      const auto decision = cache.TryPrefetch(key, random.Below(1'000'001));
      if (decision.slot.valid()) loading.push_back(decision.slot);
    } else if (what < 7) {
      const ExpertKey key{LayerId(any_layer()), ExpertId(static_cast<int32_t>(random.Below(12)))};
      cache.NotePrediction(key, random.Below(1'000'001));
    } else if (!loading.empty()) {
      const size_t n = random.Below(static_cast<uint32_t>(loading.size()));
      const SlotRef ref = loading[n];
      loading.erase(loading.begin() + static_cast<ptrdiff_t>(n));
      if (random.Below(10) == 0) {
        cache.OnLoadFailed(ref);
      } else {
        cache.OnLoaded(ref);
      }
    }
    if (closes && !open && of_forecast.Below(8) == 0) {
      const auto count = static_cast<int32_t>(1 + of_forecast.Below(3));
      const int32_t before = cache.slots();
      const int32_t last = cache.slots_of(slots.size() - 1);
      if (of_forecast.Below(2) == 0) {
        const bool closed = cache.CloseSlots(count);
        EXPECT_EQ(cache.slots(), closed ? before - count : before);
      } else if (last + count <= slots.back()) {
        cache.OpenSlots(count);
      }
    }
    const Status status = cache.CheckInvariants();
    if (!status.ok()) {
      ADD_FAILURE() << "seed " << seed << " event " << i << ": " << status.ToString();
      break;
    }
  }
  return cache.digest();
}

TEST(ExpertCache, InvariantsHoldUnderRandomEvents) {
  const int32_t slots[] = {0, 1, 2, 7, 20, 48};
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::vector<int32_t> n = {slots[seed % 6]};
    EXPECT_EQ(RandomEvents(seed, 10'000, n), RandomEvents(seed, 10'000, n));
    RandomEvents(seed, 5'000, n, CacheRanking::kNextUse);
    RandomEvents(seed, 5'000, n, CacheRanking::kRecency);
    RandomEvents(seed, 5'000, n, CacheRanking::kGuarded, true);
    RandomEvents(seed, 5'000, n, CacheRanking::kGuarded, false, true);
    RandomEvents(seed, 5'000, n, CacheRanking::kRecency, true, true);
  }
}

TEST(ExpertCache, InvariantsHoldUnderRandomEventsWithSeveralClasses) {
  const std::vector<int32_t> slots[] = {{0, 3},     {4, 9},    {20, 30},   {1, 1},
                                        {2, 5, 11}, {9, 0, 7}, {16, 4, 16}};
  for (uint64_t seed = 0; seed < 14; ++seed) {
    const std::vector<int32_t>& n = slots[seed % 7];
    const auto classes = RandomClasses(seed, static_cast<uint32_t>(n.size()));
    const auto run = [&](CacheRanking ranking, bool forecasts, bool closes) {
      return RandomEvents(seed, 5'000, n, ranking, forecasts, closes, classes);
    };
    EXPECT_EQ(run(CacheRanking::kGuarded, false, false), run(CacheRanking::kGuarded, false, false));
    run(CacheRanking::kNextUse, false, true);
    run(CacheRanking::kRecency, false, false);
    run(CacheRanking::kGuarded, true, false);
    run(CacheRanking::kGuarded, false, true);
    run(CacheRanking::kRecency, true, true);
  }
}

// Of those that no demand needs, the farthest; of equals the one used longest ago; of these the one
// in the lowest slot. Forecasts of few values, so that equals are common.
TEST(ExpertCache, AForecastRanksVictims) {
  constexpr int32_t kLayers = 3;
  constexpr int32_t kExperts = 20;
  for (const uint32_t values : {2u, 40u, 4000u}) {
    Random random(values);
    ExpertCacheOptions options = Options(kLayers, kExperts, 2, 17);
    options.ranking = CacheRanking::kNextUse;
    ExpertCache cache(options);
    std::vector<uint32_t> forecast(kLayers * kExperts);
    std::vector<int> last_use(forecast.size());
    int evictions = 0;
    for (int event = 1; event <= 600; ++event) {
      const auto layer = static_cast<int32_t>(random.Below(kLayers));
      const auto expert = static_cast<int32_t>(random.Below(kExperts));
      for (uint32_t& distance : forecast) distance = random.Below(values);
      ExpertKey expected;
      const auto index = [&](ExpertKey key) {
        return key.layer.index() * kExperts + key.expert.index();
      };
      for (int32_t s = 0; s < 17; ++s) {
        const ExpertKey key = cache.KeyOf(SlotId(s));
        if (!key.layer.valid()) continue;
        const auto rank = [&](ExpertKey k) {
          return std::pair(forecast[index(k)], -last_use[index(k)]);
        };
        if (!expected.layer.valid() || rank(key) > rank(expected)) expected = key;
      }
      const ExpertKey demanded{LayerId(layer), ExpertId(expert)};
      const bool leaves =
          forecast[index(expected.layer.valid() ? expected : demanded)] > forecast[index(demanded)];
      const bool full = cache.slots_used() == 17;
      const bool present = cache.StateOf(demanded) != SlotState::kFree;
      cache.UseForecast(forecast);
      const auto decisions = RunEvent(cache, layer, Decode({expert}));
      last_use[index(demanded)] = event;
      if (present || !full) continue;
      EXPECT_EQ(decisions[0].outcome, leaves ? DemandOutcome::kLoad : DemandOutcome::kBypass);
      if (!leaves) continue;
      EXPECT_EQ(decisions[0].victim, expected) << values << " values, event " << event;
      ++evictions;
    }
    EXPECT_GT(evictions, 50);
  }
}

TEST(ExpertCache, AClassThatHasAllExpertsIsTheOnlyOne) {
  const uint64_t alone = RandomEvents(7, 5'000, {9});
  EXPECT_EQ(RandomEvents(7, 5'000, {9}, CacheRanking::kGuarded, false, false,
                         std::vector<uint8_t>(48, 0)),
            alone);
  EXPECT_EQ(RandomEvents(7, 5'000, {9, 0}, CacheRanking::kGuarded, false, false,
                         std::vector<uint8_t>(48, 0)),
            alone);
}

TEST(ExpertCache, AnExpertTakesSlotsOfItsClassAlone) {
  ExpertCacheOptions options = Options(1, 6, 2, 0);
  options.slot_class = {0, 0, 0, 1, 1, 1};
  options.slots = {1, 2};
  ExpertCache cache(options);
  const auto first = RunEvent(cache, 0, Decode({0, 1}));
  EXPECT_EQ(CountOutcome(first, DemandOutcome::kLoad), 1);
  EXPECT_EQ(CountOutcome(first, DemandOutcome::kBypass), 1) << "free slots of the other class";
  EXPECT_EQ(CountOutcome(RunEvent(cache, 0, Decode({3, 4})), DemandOutcome::kLoad), 2);
  EXPECT_EQ(cache.slots_used(), 3);
  for (int i = 0; i < 30; ++i) RunEvent(cache, 0, Decode({1, 3}));
  for (const DemandDecision& d : RunEvent(cache, 0, Decode({2, 5}))) {
    if (d.outcome != DemandOutcome::kLoad) continue;
    EXPECT_EQ(d.slot.slot.value >= 1, d.key.expert.value >= 3);
    EXPECT_EQ(d.victim.expert.value >= 3, d.key.expert.value >= 3);
  }
  EXPECT_EQ(cache.StateOf({LayerId(0), ExpertId(4)}), SlotState::kFree) << "the one to leave";
  EXPECT_EQ(cache.StateOf({LayerId(0), ExpertId(3)}), SlotState::kReady);
}

// Plain LRU: what one class does has no influence on another.
TEST(ExpertCache, ClassesOfPlainLruAreCachesOfTheirOwn) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Random random(seed);
    ExpertCacheOptions options = Options(4, 12, 3, 0);
    options.ranking = CacheRanking::kRecency;
    options.slot_class = RandomClasses(seed, 2);
    options.slots = {static_cast<int32_t>(3 + seed), 9};
    ExpertCache both(options);
    std::vector<ExpertCache> apart;
    for (const int32_t slots : options.slots) {
      ExpertCacheOptions alone = options;
      alone.slot_class.clear();
      alone.slots = {slots};
      apart.emplace_back(std::move(alone));
    }
    for (int event = 0; event < 400; ++event) {
      std::vector<LayerDemand> all;
      std::vector<LayerDemand> own[2];
      for (int32_t e = 0; e < 12; ++e) {
        if (random.Below(3) != 0) continue;
        all.push_back({ExpertId(e), 1, 0});
        own[options.slot_class[static_cast<size_t>(event % 4 * 12 + e)]].push_back(all.back());
      }
      const auto together = RunEvent(both, event % 4, all);
      for (size_t c = 0; c < 2; ++c) {
        for (const DemandDecision& d : RunEvent(apart[c], event % 4, own[c])) {
          const auto same = std::find_if(together.begin(), together.end(),
                                         [&](const auto& other) { return other.key == d.key; });
          ASSERT_NE(same, together.end());
          ASSERT_EQ(same->outcome, d.outcome) << "seed " << seed << " event " << event;
          ASSERT_EQ(same->victim, d.victim) << "seed " << seed << " event " << event;
        }
      }
    }
    EXPECT_GT(both.stats().evictions, 100u);
  }
}

TEST(ExpertCache, SlotsOfTheLastClassAreClosed) {
  ExpertCacheOptions options = Options(1, 8, 2, 0);
  options.slot_class = {0, 0, 0, 0, 1, 1, 1, 1};
  options.slots = {3, 2};
  ExpertCache cache(options);
  RunEvent(cache, 0, Decode({0, 1, 2, 4, 5}));
  EXPECT_FALSE(cache.CloseSlots(3));
  EXPECT_TRUE(cache.CloseSlots(2));
  EXPECT_EQ(cache.slots(), 3);
  EXPECT_EQ(cache.slots_used(), 3);
  EXPECT_EQ(cache.slots_of(0), 3);
  EXPECT_EQ(cache.slots_of(1), 0);
  const auto event = RunEvent(cache, 0, Decode({0, 4}));
  EXPECT_EQ(event[0].outcome, DemandOutcome::kHit);
  EXPECT_EQ(event[1].outcome, DemandOutcome::kBypass);
  cache.OpenSlots(2);
  EXPECT_EQ(RunEvent(cache, 0, Decode({4}))[0].outcome, DemandOutcome::kLoad);
}

TEST(ExpertCache, FIELD_22_AClassBelowItsDemandIsThrashing) {
  ExpertCacheOptions options = Options(2, 8, 2, 0);
  options.slot_class.assign(16, 0);
  std::fill(options.slot_class.begin() + 4, options.slot_class.end(), uint8_t{1});
  options.slots = {1, 8};
  ExpertCache cache(options);
  EXPECT_FALSE(cache.stats().thrashing);
  for (int l = 0; l < 2; ++l) RunEvent(cache, l, Decode({0, 1}));
  EXPECT_EQ(cache.stats().demand_per_step, 4u);
  EXPECT_TRUE(cache.stats().thrashing) << "two experts of layer 0 for one slot";
  for (int l = 0; l < 2; ++l) RunEvent(cache, l, Decode({0, 7}));
  EXPECT_FALSE(cache.stats().thrashing);
}

// Plain LRU has an order of its own as long as nothing is predicted: it decides as the ranks do.
TEST(ExpertCache, PlainLruDecidesAsRanksByRecencyDo) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    ExpertCacheOptions options = Options(4, 12, 3, static_cast<int32_t>(5 + 2 * seed));
    options.ranking = CacheRanking::kRecency;
    ExpertCache listed(options);
    ExpertCache ranked(options);
    ranked.NotePrediction({LayerId(0), ExpertId(0)}, 1);  // forgotten when the layer comes
    uint64_t missed = 0;
    for (int event = 0; event < 400; ++event) {
      const LayerId layer(event % 4);
      std::vector<LayerDemand> demands;
      const bool prefill = event >= 4 && random.Below(6) == 0;
      for (int32_t e = 0; e < 12; ++e) {
        if (random.Below(3) != 0) continue;
        demands.push_back({ExpertId(e), prefill ? 0 : 1, prefill ? 2 : 0});
      }
      const auto a = listed.BeginLayer(layer, demands);
      const auto b = ranked.BeginLayer(layer, demands);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i].outcome, b[i].outcome) << "seed " << seed << " event " << event;
        ASSERT_EQ(a[i].slot, b[i].slot) << "seed " << seed << " event " << event;
        if (a[i].outcome != DemandOutcome::kLoad) continue;
        listed.OnLoaded(a[i].slot);
        ranked.OnLoaded(b[i].slot);
        ++missed;
      }
      listed.EndLayer();
      ranked.EndLayer();
      ASSERT_TRUE(listed.CheckInvariants().ok());
    }
    EXPECT_GT(missed, 100u);
  }
}

TEST(ExpertCache, ClosedSlotsHoldNothingAndOpenOnesDoAgain) {
  ExpertCache cache(Options(1, 8, 2, 4));
  const auto use = [&](int32_t first, int32_t count) {
    std::vector<LayerDemand> demands;
    for (int32_t e = first; e < first + count; ++e) demands.push_back({ExpertId(e), 1, 0});
    for (const DemandDecision& d : cache.BeginLayer(LayerId(0), demands)) {
      if (d.outcome == DemandOutcome::kLoad) cache.OnLoaded(d.slot);
    }
    cache.EndLayer();
  };
  use(0, 4);
  EXPECT_FALSE(cache.CloseSlots(5));
  EXPECT_TRUE(cache.CloseSlots(3));
  EXPECT_EQ(cache.slots(), 1);
  EXPECT_EQ(cache.slots_used(), 1);
  EXPECT_EQ(cache.StateOf({LayerId(0), ExpertId(0)}), SlotState::kReady);
  EXPECT_EQ(cache.StateOf({LayerId(0), ExpertId(3)}), SlotState::kFree);
  // One that is loading stays.
  EXPECT_TRUE(cache.CloseSlots(1));
  cache.OpenSlots(2);
  const PrefetchDecision loading = cache.TryPrefetch({LayerId(0), ExpertId(5)}, 900'000);
  ASSERT_TRUE(loading.slot.valid());
  EXPECT_TRUE(cache.CloseSlots(1));
  EXPECT_FALSE(cache.CloseSlots(1));
  cache.OnLoaded(loading.slot);
  EXPECT_TRUE(cache.CloseSlots(1));
  EXPECT_TRUE(cache.CheckInvariants().ok());
  cache.OpenSlots(4);
  use(4, 4);
  EXPECT_EQ(cache.slots_used(), 4);
}

// The behaviour signature: changes when decisions change; say so in the commit.
TEST(ExpertCache, GoldenDigest) {
  EXPECT_EQ(RandomEvents(42, 20'000, {9}), 7071244116615209710u);
}

}  // namespace
}  // namespace expertflow
