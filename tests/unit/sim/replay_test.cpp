// Replay of small routings whose right answer is known, and random ones with every invariant
// checked after every event.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sim/replay.h"
#include "sim/replay_cache.h"
#include "sim/routing_trace.h"

namespace expertflow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kPolicies = {
    "static",        "lru",       "lru-layer", "lfu",  "lfru",
    "decayed-lfu-8", "two-level", "belady",    "ours", "ours-no-forecast"};

// tokens[sequence][token][layer] = chosen experts
using Tokens = std::vector<std::vector<std::vector<std::vector<uint16_t>>>>;

RoutingTrace MakeTrace(std::vector<int32_t> experts, const Tokens& tokens) {
  RoutingTrace trace;
  trace.experts = std::move(experts);
  trace.top_k = static_cast<int32_t>(tokens[0][0][0].size());
  size_t row = 0;
  for (const auto& sequence : tokens) {
    trace.sequences.push_back({row, sequence.size()});
    row += sequence.size();
    for (const auto& token : sequence) {
      for (const auto& layer : token) {
        trace.chosen.insert(trace.chosen.end(), layer.begin(), layer.end());
      }
    }
  }
  trace.weights.assign(trace.chosen.size(), 1.0f);
  return trace;
}

RoutingTrace RandomTrace(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  const size_t layers = 1 + below(4);
  RoutingTrace trace;
  trace.top_k = static_cast<int32_t>(1 + below(3));
  for (size_t l = 0; l < layers; ++l) trace.experts.push_back(static_cast<int32_t>(3 + below(9)));
  size_t row = 0;
  for (size_t s = 0; s < 1 + below(6); ++s) {
    const size_t rows = 1 + below(25);
    trace.sequences.push_back({row, rows});
    row += rows;
    for (size_t i = 0; i < rows; ++i) {
      for (const int32_t experts : trace.experts) {
        // Skewed, and now and then the same expert twice.
        for (int32_t k = 0; k < trace.top_k; ++k) {
          const uint64_t most = 1 + below(static_cast<uint64_t>(experts));
          trace.chosen.push_back(static_cast<uint16_t>(below(most)));
        }
      }
    }
  }
  trace.weights.assign(trace.chosen.size(), 0.5f);
  return trace;
}

std::vector<int32_t> All(const RoutingTrace& trace) {
  std::vector<int32_t> list;
  for (size_t s = 0; s < trace.sequences.size(); ++s) list.push_back(static_cast<int32_t>(s));
  return list;
}

ReplayOptions OptionsFor(const RoutingTrace& trace, std::vector<std::string> policies,
                         std::vector<double> residencies) {
  ReplayOptions options;
  options.policies = std::move(policies);
  options.residencies = std::move(residencies);
  options.sequences = options.training = All(trace);
  options.bootstrap_rounds = 0;
  options.check_invariants = true;
  return options;
}

TEST(LockstepTest, LanesTakeTheNextSequenceAndEventsAreDistinctSets) {
  const RoutingTrace trace = MakeTrace(
      {4, 4}, {{{{0, 1}, {2, 2}}}, {{{1, 3}, {0, 1}}, {{3, 2}, {1, 0}}}, {{{0, 2}, {3, 1}}}});
  const std::vector<int32_t> all = All(trace);
  const Lockstep lockstep = MakeLockstep(trace, all, 2);
  ASSERT_EQ(lockstep.steps(), 2u);
  EXPECT_EQ(lockstep.RowsOf(0)[1].sequence, 1);
  EXPECT_EQ(lockstep.RowsOf(1)[0].sequence, 2);  // lane 0 is free again after one token
  EXPECT_TRUE(lockstep.RowsOf(1)[0].first);
  EXPECT_FALSE(lockstep.RowsOf(1)[1].first);
  EXPECT_THAT(lockstep.ExpertsOf(0), ElementsAre(0, 1, 3));
  EXPECT_THAT(lockstep.UsersOf(0), ElementsAre(1, 2, 1));
  EXPECT_THAT(lockstep.ExpertsOf(1), ElementsAre(4, 5, 6));
  EXPECT_THAT(lockstep.UsersOf(1), ElementsAre(1, 1, 1));  // expert 2 named twice counts once
  EXPECT_THAT(NextUses(lockstep), ElementsAre(2, 4, 2, 3, 3, 4, 4, 4, 4, 4, 4, 4));
}

// Slots of two sizes: each class is a cache of its own, for every policy, with its share of slots.
TEST(ReplayTest, SlotsOfTwoSizesAreTwoCaches) {
  std::vector<std::string> policies = kPolicies;
  std::erase(policies, "static");  // begins with what the others have to load
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RoutingTrace trace = RandomTrace(seed);
    ReplayOptions options = OptionsFor(trace, policies, {0, 0.3, 0.6, 1});
    const auto experts = static_cast<size_t>(ExpertBases(trace.experts).back());
    std::mt19937_64 random(seed);
    int32_t large = 0;
    for (size_t e = 0; e < experts; ++e) {
      const bool is_large = e == 0 || (e > 1 && random() % 3 == 0);
      large += is_large ? 1 : 0;
      options.block_bytes.push_back(is_large ? 9000 : 4000);
    }
    const auto small = static_cast<int32_t>(experts) - large;
    const auto rows = Replay(trace, options, 2);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    std::map<double, uint64_t> best;
    for (const ReplayRow& row : *rows) {
      if (row.policy == "belady") best[row.residency] = row.misses;
    }
    for (const ReplayRow& row : *rows) {
      const auto share = [&](int32_t of) {
        return static_cast<int32_t>(row.residency * of + 1e-9);
      };
      EXPECT_EQ(row.slots, share(large) + share(small));
      EXPECT_EQ(row.slot_bytes,
                static_cast<uint64_t>(share(large) * 3 * 4096 + share(small) * 4096));
      EXPECT_GE(row.bytes_missed, 4000 * row.misses);
      EXPECT_LE(row.bytes_missed, 9000 * row.misses);
      EXPECT_GE(row.misses, best[row.residency]) << row.policy;
      if (row.residency == 0) {
        EXPECT_EQ(row.misses, row.uses) << row.policy;
      }
    }
  }
}

// Half of one large expert is no slot, half of three small ones is one.
TEST(ReplayTest, AnExpertTakesNoSlotOfAnotherSize) {
  const RoutingTrace trace = MakeTrace({4}, {{{{0}}, {{1}}, {{0}}, {{1}}, {{0}}, {{1}}}});
  for (const std::string policy : {"lru", "belady", "ours-no-forecast"}) {
    ReplayOptions options = OptionsFor(trace, {policy}, {0.5});
    options.block_bytes = {9000, 4000, 4000, 4000};
    const auto rows = Replay(trace, options, 1);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    EXPECT_EQ((*rows)[0].slots, 1) << policy;
    EXPECT_EQ((*rows)[0].misses, 4u) << policy;
    EXPECT_EQ((*rows)[0].bytes_missed, 3 * 9000u + 4000) << policy;
  }
}

// Three layers in a cycle, an expert each, two slots: the least recently used expert is always the
// one needed next, so LRU never hits, and the bound keeps two of the three for good.
// Each look at it is 1 us later than the last, and every hundredth 1 ms.
int64_t CountedNs() {
  static int64_t looks = 0;
  static int64_t now_ns = 0;
  now_ns += ++looks % 100 == 0 ? 1'000'000 : 1'000;
  return now_ns;
}

TEST(ReplayTest, EventsAreTimedWithTheClockThatIsGiven) {
  const RoutingTrace trace = RandomTrace(7);
  ReplayOptions options;
  options.policies = {"lru", "ours"};
  options.residencies = {0.5};
  options.sequences = {0};
  for (const bool timed : {false, true}) {
    options.now_ns = timed ? CountedNs : nullptr;
    const auto rows = Replay(trace, options, 1);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    for (const ReplayRow& row : *rows) {
      EXPECT_EQ(row.event_ns_median, timed ? 1'000 : 0);
      EXPECT_GE(row.event_ns_p99, row.event_ns_median);
    }
  }
}

TEST(ReplayTest, FIELD_22_LruMissesEverythingBelowOneCycle) {
  Tokens tokens(1);
  for (int i = 0; i < 50; ++i) tokens[0].push_back({{0}, {0}, {0}});
  const RoutingTrace trace = MakeTrace({1, 1, 1}, tokens);
  const auto rows = Replay(trace, OptionsFor(trace, {"lru", "lru-layer", "belady"}, {2.0 / 3}), 1);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ(rows->at(0).slots, 2);
  EXPECT_EQ(rows->at(0).misses, 150u);
  EXPECT_EQ(rows->at(1).misses, 2u + 50u);  // the last layer has no slot
  EXPECT_EQ(rows->at(2).misses, 2u + 50u);
  EXPECT_DOUBLE_EQ(rows->at(0).slots_per_demand, 2.0 / 3);
}

// One expert after the other misses it; asked as one set, both are hits or misses together.
TEST(ReplayTest, FIELD_4_EventsAreAtomic) {
  Tokens tokens(1);
  for (int i = 0; i < 10; ++i) tokens[0].push_back({{0, 1, 2}});
  const RoutingTrace trace = MakeTrace({4}, tokens);
  ReplayOptions options =
      OptionsFor(trace, {"lru", "lfu", "lfru", "decayed-lfu-1", "two-level"}, {0.75});
  const auto rows = Replay(trace, options, 1);
  ASSERT_TRUE(rows.ok());
  for (const ReplayRow& row : *rows) EXPECT_EQ(row.misses, 3u) << row.policy;
  options.residencies = {0.5};
  const auto tight = Replay(trace, options, 1);
  ASSERT_TRUE(tight.ok());
  // The third bypasses: nobody of the event is evicted for it, so two always hit.
  for (const ReplayRow& row : *tight) EXPECT_EQ(row.misses, 3u + 9u) << row.policy;
}

TEST(ReplayTest, DecayedLfuForgets) {
  Tokens tokens(1);
  for (int i = 0; i < 40; ++i) tokens[0].push_back({{0}});
  for (int i = 0; i < 40; ++i) tokens[0].push_back({{static_cast<uint16_t>(1 + i % 2)}});
  const RoutingTrace trace = MakeTrace({4}, tokens);
  const auto rows =
      Replay(trace, OptionsFor(trace, {"lfu", "decayed-lfu-1", "decayed-lfu-1000"}, {0.5}), 1);
  ASSERT_TRUE(rows.ok());
  EXPECT_GT(rows->at(0).misses, 35u);  // expert 0 stays for its old uses, 1 and 2 take turns
  EXPECT_LT(rows->at(1).misses, 10u);  // it is forgotten
  EXPECT_GT(rows->at(2).misses, 35u);
}

TEST(ReplayTest, StaticBindingKeepsWhatTrainingUsed) {
  const RoutingTrace trace = MakeTrace({3}, {{{{2}}, {{2}}, {{1}}}, {{{0}}, {{2}}}});
  ReplayOptions options = OptionsFor(trace, {"static"}, {1.0 / 3});
  options.training = {0};
  options.sequences = {1};
  const auto rows = Replay(trace, options, 1);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->at(0).misses, 1u);
  EXPECT_EQ(rows->at(0).uses, 2u);
}

// The least number of misses of any policy with bypass, by trying everything.
uint64_t BestPossible(const Lockstep& lockstep, size_t slots) {
  std::map<std::set<int32_t>, uint64_t> reach = {{{}, 0}};
  for (size_t event = 0; event < lockstep.events(); ++event) {
    const auto used = lockstep.ExpertsOf(event);
    std::map<std::set<int32_t>, uint64_t> next;
    for (const auto& [held, cost] : reach) {
      uint64_t misses = 0;
      std::vector<int32_t> newcomers;
      for (const int32_t e : used) {
        if (held.count(e) == 0) newcomers.push_back(e);
      }
      misses = cost + newcomers.size();
      // Keeping more is never worse, so only full sets are followed: each choice of `slots` of all.
      std::vector<int32_t> pool(held.begin(), held.end());
      pool.insert(pool.end(), newcomers.begin(), newcomers.end());
      std::vector<uint8_t> pick(pool.size(), 0);
      std::fill_n(pick.begin(), std::min(slots, pool.size()), 1);
      do {
        std::set<int32_t> kept;
        for (size_t i = 0; i < pool.size(); ++i) {
          if (pick[i] != 0) kept.insert(pool[i]);
        }
        const auto [at, is_new] = next.try_emplace(kept, misses);
        if (!is_new) at->second = std::min(at->second, misses);
      } while (std::prev_permutation(pick.begin(), pick.end()));
    }
    reach = std::move(next);
  }
  uint64_t best = UINT64_MAX;
  for (const auto& [held, cost] : reach) best = std::min(best, cost);
  return best;
}

TEST(ReplayTest, BeladyIsTheBestThatAnyPolicyCanDo) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 30; ++round) {
    Tokens tokens(2);
    for (auto& sequence : tokens) {
      for (int i = 0; i < 8; ++i) {
        sequence.push_back(
            {{static_cast<uint16_t>(random() % 3)}, {static_cast<uint16_t>(random() % 3)}});
      }
    }
    const RoutingTrace trace = MakeTrace({3, 3}, tokens);
    const Lockstep lockstep = MakeLockstep(trace, All(trace), 2);
    for (const int slots : {1, 2, 3}) {
      const auto rows = Replay(trace, OptionsFor(trace, {"belady"}, {slots / 6.0}), 2);
      ASSERT_TRUE(rows.ok());
      ASSERT_EQ(rows->at(0).slots, slots);
      EXPECT_EQ(rows->at(0).misses, BestPossible(lockstep, static_cast<size_t>(slots)))
          << "round " << round << ", " << slots << " slots";
    }
  }
}

TEST(ReplayTest, InvariantsHoldAfterEveryEventAndNobodyBeatsBelady) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RoutingTrace trace = RandomTrace(seed);
    for (const int32_t batch : {1, 3}) {
      const auto rows = Replay(trace, OptionsFor(trace, kPolicies, {0, 0.2, 0.5, 0.8, 1}), batch);
      ASSERT_TRUE(rows.ok()) << "seed " << seed << ": " << rows.status().ToString();
      for (const ReplayRow& row : *rows) {
        const auto bound = std::find_if(rows->begin(), rows->end(), [&](const ReplayRow& other) {
          return other.policy == "belady" && other.residency == row.residency;
        });
        if (row.policy == "static") continue;  // starts with its experts loaded
        EXPECT_GE(row.misses, bound->misses) << row.policy << ", seed " << seed;
        if (row.residency == 0) {
          EXPECT_EQ(row.misses, row.uses) << row.policy;
        }
      }
    }
  }
}

// Each phase uses new experts and old ones return late: what was frequent misleads, what was recent
// helps. Without its comparison with LRU the cache would miss more than LRU here.
RoutingTrace PhasedTrace(uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t phase = 20 + random() % 60;
  const size_t working_set = 3 + random() % 3;
  Tokens tokens(1);
  for (size_t i = 0; i < 6000; ++i) {
    std::vector<std::vector<uint16_t>> layers;
    for (size_t layer = 0; layer < 2; ++layer) {
      const size_t first = i / phase * working_set;
      layers.push_back({static_cast<uint16_t>((first + random() % working_set) % 16)});
    }
    tokens[0].push_back(layers);
  }
  return MakeTrace({16, 16}, tokens);
}

TEST(ReplayTest, OursNeverLosesMuchToLru) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RoutingTrace trace = PhasedTrace(seed);
    ReplayOptions options = OptionsFor(trace, {"lru", "ours"}, {0.15, 0.25, 0.4, 0.7, 0.9});
    options.check_invariants = seed == 0;
    const auto rows = Replay(trace, options, 1);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    for (size_t i = 0; i < 5; ++i) {
      const ReplayRow& lru = rows->at(i);
      const ReplayRow& ours = rows->at(5 + i);
      EXPECT_LE(ours.miss_rate, lru.miss_rate * 1.01 + 0.005)
          << "seed " << seed << ", " << lru.slots;
    }
  }
}

TEST(ReplayTest, SameInputSameDigest) {
  const RoutingTrace trace = RandomTrace(5);
  const ReplayOptions options = OptionsFor(trace, kPolicies, {0.3, 0.6});
  const auto a = Replay(trace, options, 2);
  const auto b = Replay(trace, options, 2);
  ASSERT_TRUE(a.ok() && b.ok());
  std::set<uint64_t> digests;
  for (size_t i = 0; i < a->size(); ++i) {
    EXPECT_EQ(a->at(i).digest, b->at(i).digest);
    digests.insert(a->at(i).digest);
  }
  EXPECT_GT(digests.size(), kPolicies.size());
}

TEST(ReplayTest, IntervalCoversTheRateAndGapsAreClosedBetweenTheirEnds) {
  const RoutingTrace trace = RandomTrace(8);
  ReplayOptions options = OptionsFor(trace, {"lru", "belady", "lfu"}, {0.4});
  options.bootstrap_rounds = 200;
  auto rows = Replay(trace, options, 1);
  ASSERT_TRUE(rows.ok());
  CloseGaps(*rows);
  for (const ReplayRow& row : *rows) {
    EXPECT_LE(row.miss_rate_low, row.miss_rate);
    EXPECT_GE(row.miss_rate_high, row.miss_rate);
  }
  EXPECT_LT(rows->at(0).miss_rate_low, rows->at(0).miss_rate_high);
  EXPECT_DOUBLE_EQ(rows->at(0).gap_closed.value(), 0);
  EXPECT_DOUBLE_EQ(rows->at(1).gap_closed.value(), 1);
  EXPECT_FALSE(rows->at(0).gap_closed_layer.has_value());  // that arm did not run
}

TEST(ReplayTest, UnknownPoliciesAreNamed) {
  const RoutingTrace trace = RandomTrace(1);
  for (const std::string policy : {"mru", "decayed-lfu-", "decayed-lfu-x", "decayed-lfu-0"}) {
    const auto rows = Replay(trace, OptionsFor(trace, {policy}, {0.4}), 1);
    ASSERT_FALSE(rows.ok()) << policy;
    EXPECT_THAT(rows.status().message(), HasSubstr("unknown policy " + policy));
  }
}

}  // namespace
}  // namespace expertflow
