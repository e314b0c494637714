// What the best possible cache would have missed, in windows of what came.
#include "worker/policy/best_cache_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace expertflow {
namespace {

using Events = std::vector<std::vector<size_t>>;

BestCacheSample::Counts Sampled(const Events& events, int32_t slots,
                                const std::vector<size_t>& resident, int32_t counted) {
  BestCacheSample sample({.experts = 10,
                          .slots = {slots},
                          .window_events = static_cast<int32_t>(events.size()),
                          .counted_events = counted,
                          .pause_events = 0});
  EXPECT_TRUE(sample.WantsBegin());
  sample.Begin(resident);
  for (const auto& uses : events) sample.OnEvent(uses, uses.size(), 1);
  return sample.counts();
}

// The fewest misses by trying everything: after an event, any of what it used or what was there may
// be kept.
uint64_t Fewest(const Events& events, size_t event, const std::set<size_t>& resident,
                size_t slots) {
  if (event == events.size()) return 0;
  uint64_t misses = 0;
  std::set<size_t> all = resident;
  for (const size_t expert : events[event]) {
    misses += resident.contains(expert) ? 0 : 1;
    all.insert(expert);
  }
  const std::vector<size_t> choices(all.begin(), all.end());
  uint64_t best = UINT64_MAX;
  for (uint32_t kept = 0; kept < 1u << choices.size(); ++kept) {
    std::set<size_t> next;
    for (size_t i = 0; i < choices.size(); ++i) {
      if ((kept >> i & 1) != 0) next.insert(choices[i]);
    }
    if (next.size() <= slots) best = std::min(best, Fewest(events, event + 1, next, slots));
  }
  return misses + best;
}

TEST(BestCacheSampleTest, KeepsWhatComesNextAndLetsPassWhatComesLast) {
  // One slot: 3 is used once, 1 again and again.
  const Events events = {{1}, {3}, {1}, {1}, {4}, {1}};
  const auto counts = Sampled(events, 1, {}, 6);
  EXPECT_EQ(counts.uses, 6u);
  EXPECT_EQ(counts.misses, 6u);
  EXPECT_EQ(counts.lru_misses, 6u);
  EXPECT_EQ(counts.best_misses, 3u);
  EXPECT_EQ(Sampled(events, 1, {1}, 6).best_misses, 2u) << "it was there";
  EXPECT_EQ(Sampled(events, 2, {8, 9}, 6).best_misses, 3u);
  EXPECT_EQ(Sampled(events, 0, {}, 6).best_misses, 6u);
  // What comes after the counted part decides what is kept, and is not counted.
  EXPECT_EQ(Sampled(events, 1, {}, 2).best_misses, 2u);
}

TEST(BestCacheSampleTest, NoOtherChoiceMissesLess) {
  uint64_t state = 1;
  const auto below = [&](uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state >> 33) % n);
  };
  for (int round = 0; round < 40; ++round) {
    Events events(5);
    for (auto& uses : events) {
      for (size_t e = 0; e < 5; ++e) {
        if (below(3) == 0) uses.push_back(e);
      }
    }
    const auto slots = static_cast<int32_t>(1 + below(3));
    const std::vector<size_t> resident = {4};
    EXPECT_EQ(Sampled(events, slots, resident, 5).best_misses,
              Fewest(events, 0, {4}, static_cast<size_t>(slots)))
        << "round " << round;
  }
}

TEST(BestCacheSampleTest, EachClassKeepsItsOwn) {
  // Even and odd experts: as two samples, each of one of them.
  const Events events = {{0, 1}, {2, 3}, {0, 5}, {1, 4}, {0, 1}, {2, 3, 5}, {0, 1, 4}};
  Events apart[2];
  for (const auto& uses : events) {
    for (Events& own : apart) own.emplace_back();
    for (const size_t expert : uses) apart[expert % 2].back().push_back(expert);
  }
  const auto count = static_cast<int32_t>(events.size());
  for (int32_t even = 0; even < 3; ++even) {
    BestCacheSample sample({.experts = 10,
                            .slot_class = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1},
                            .slots = {even, 2},
                            .window_events = count,
                            .counted_events = count,
                            .pause_events = 0});
    sample.Begin({});
    for (const auto& uses : events) sample.OnEvent(uses, uses.size(), 1);
    EXPECT_EQ(sample.counts().best_misses, Sampled(apart[0], even, {}, count).best_misses +
                                               Sampled(apart[1], 2, {}, count).best_misses);
  }
}

TEST(BestCacheSampleTest, WindowsArePartOfTheTimeOnly) {
  BestCacheSample sample(
      {.experts = 10, .slots = {3}, .window_events = 4, .counted_events = 3, .pause_events = 5});
  int begun = 0;
  for (size_t event = 0; event < 90; ++event) {
    if (sample.WantsBegin()) {
      sample.Begin({});
      ++begun;
    }
    sample.OnEvent(std::vector<size_t>{event % 7}, 1, 1);
  }
  EXPECT_EQ(begun, 10);
  EXPECT_EQ(sample.counts().uses, 10u * 3);
  EXPECT_LE(sample.counts().best_misses, sample.counts().misses);
}

}  // namespace
}  // namespace expertflow
