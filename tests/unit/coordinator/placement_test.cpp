#include "coordinator/policy/placement.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace expertflow {
namespace {

std::vector<std::pair<uint64_t, int32_t>> Pairs(const std::vector<Assignment>& assignments) {
  std::vector<std::pair<uint64_t, int32_t>> pairs;
  for (const Assignment& one : assignments)
    pairs.emplace_back(one.sequence.value, one.worker.value);
  return pairs;
}

using Expected = std::vector<std::pair<uint64_t, int32_t>>;

TEST(PlacementTest, TheLeastLoadedWorkerThenTheLowestId) {
  Placement placement({});
  placement.WorkerReady(WorkerId(7));
  placement.WorkerReady(WorkerId(3));
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(placement.Add({i}));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{1, 3}, {2, 7}, {3, 3}}));
  placement.Remove({1});
  placement.Remove({3});
  EXPECT_TRUE(placement.Add({4}));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{4, 3}}));
}

TEST(PlacementTest, FullWorkersAndAFullQueue) {
  Placement placement({.sequences_per_worker_max = 1, .queued_max = 2});
  EXPECT_TRUE(placement.Assign().empty());
  placement.WorkerReady(WorkerId(0));
  EXPECT_TRUE(placement.Add({1}));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{1, 0}}));
  EXPECT_TRUE(placement.Add({2}));
  EXPECT_TRUE(placement.Add({3}));
  EXPECT_FALSE(placement.Add({4}));
  EXPECT_TRUE(placement.Assign().empty());
  placement.Remove({2});  // while it waits
  placement.Remove({1});
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{3, 0}}));
}

TEST(PlacementTest, TheSequencesOfADeadWorkerGoFirstInTheirOrder) {
  Placement placement({.sequences_per_worker_max = 2, .queued_max = 8});
  placement.WorkerReady(WorkerId(0));
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(placement.Add({i}));
  EXPECT_EQ(placement.Assign().size(), 2U);
  EXPECT_EQ(placement.WorkerGone(WorkerId(0)), (std::vector<SequenceId>{{1}, {2}}));
  EXPECT_EQ(placement.WorkerOf({1}), std::nullopt);
  placement.WorkerReady(WorkerId(1));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{1, 1}, {2, 1}}));
}

// Random events; what must hold after each, and the same seed gives the same decisions.
uint64_t RunRandom(uint32_t seed) {
  std::mt19937 random(seed);
  Placement placement({.sequences_per_worker_max = 3, .queued_max = 10});
  std::set<SequenceId> alive;
  std::set<WorkerId> workers;
  uint64_t next = 0;
  for (int i = 0; i < 2000; ++i) {
    const uint32_t event = random() % 10;
    const WorkerId worker(static_cast<int32_t>(random() % 4));
    if (event < 4) {
      if (placement.Add({++next})) alive.insert({next});
    } else if (event < 7 && !alive.empty()) {
      const auto victim = std::next(alive.begin(), random() % alive.size());
      placement.Remove(*victim);
      alive.erase(victim);
    } else if (event == 7) {
      placement.WorkerReady(worker);
      workers.insert(worker);
    } else if (event == 8) {
      for (const SequenceId orphan : placement.WorkerGone(worker)) {
        EXPECT_TRUE(alive.contains(orphan));
      }
      workers.erase(worker);
    }
    for (const Assignment& one : placement.Assign()) {
      EXPECT_TRUE(alive.contains(one.sequence));
      EXPECT_TRUE(workers.contains(one.worker));
    }
    const Status invariants = placement.CheckInvariants();
    EXPECT_TRUE(invariants.ok()) << "seed " << seed << " event " << i << invariants.ToString();
    EXPECT_EQ(placement.queued() + placement.running(), alive.size());
    if (placement.queued() > 0) {
      EXPECT_EQ(placement.running(), workers.size() * 3) << "a place is free while one waits";
    }
  }
  return placement.digest();
}

TEST(PlacementTest, RandomEventsKeepTheInvariantsAndDecideTheSameAgain) {
  std::set<uint64_t> digests;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const uint64_t digest = RunRandom(seed);
    EXPECT_EQ(RunRandom(seed), digest);
    digests.insert(digest);
  }
  EXPECT_EQ(digests.size(), 20U);
}

}  // namespace
}  // namespace expertflow
