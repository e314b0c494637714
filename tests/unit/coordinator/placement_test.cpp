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
  placement.WorkerReady(WorkerId(7), 0);
  placement.WorkerReady(WorkerId(3), 0);
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(placement.Add({i}, 0, {}));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{1, 3}, {2, 7}, {3, 3}}));
  placement.Remove({1});
  placement.Remove({3});
  EXPECT_TRUE(placement.Add({4}, 0, {}));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{4, 3}}));
}

TEST(PlacementTest, FullWorkersAndAFullQueue) {
  Placement placement({.sequences_per_worker_max = 1, .queued_max = 2});
  EXPECT_TRUE(placement.Assign().empty());
  placement.WorkerReady(WorkerId(0), 0);
  EXPECT_TRUE(placement.Add({1}, 0, {}));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{1, 0}}));
  EXPECT_TRUE(placement.Add({2}, 0, {}));
  EXPECT_TRUE(placement.Add({3}, 0, {}));
  EXPECT_FALSE(placement.Add({4}, 0, {}));
  EXPECT_TRUE(placement.Assign().empty());
  placement.Remove({2});  // while it waits
  placement.Remove({1});
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{3, 0}}));
}

TEST(PlacementTest, TheSequencesOfADeadWorkerGoFirstInTheirOrder) {
  Placement placement({.sequences_per_worker_max = 2, .queued_max = 8});
  placement.WorkerReady(WorkerId(0), 0);
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(placement.Add({i}, 0, {}));
  EXPECT_EQ(placement.Assign().size(), 2U);
  EXPECT_EQ(placement.WorkerGone(WorkerId(0)), (std::vector<SequenceId>{{1}, {2}}));
  EXPECT_EQ(placement.WorkerOf({1}), std::nullopt);
  placement.WorkerReady(WorkerId(1), 0);
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{1, 1}, {2, 1}}));
}

TEST(PlacementTest, TheLowestRankGoesFirstWhereverItWas) {
  Placement placement({.sequences_per_worker_max = 1, .queued_max = 8});
  EXPECT_TRUE(placement.Add({1}, 20, {}));
  EXPECT_TRUE(placement.Add({2}, 10, {}));
  EXPECT_TRUE(placement.Add({3}, 10, {}));
  placement.WorkerReady(WorkerId(0), 0);
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{2, 0}}));
  EXPECT_TRUE(placement.Add({4}, 5, {}));
  placement.WorkerGone(WorkerId(0));
  placement.WorkerReady(WorkerId(1), 0);
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{4, 1}}));
  for (const auto& [ended, next] : {std::pair{4U, 2U}, {2U, 3U}, {3U, 1U}}) {
    placement.Remove({ended});
    EXPECT_EQ(Pairs(placement.Assign()), (Expected{{next, 1}}));
  }
}

TEST(PlacementTest, AWorkerThatHasTheBeginningUnlessItIsMuchBusier) {
  Placement placement({.sequences_per_worker_max = 8});
  placement.WorkerReady(WorkerId(0), 100);
  placement.WorkerReady(WorkerId(1), 100);
  const auto place = [&](uint64_t id, const std::vector<uint64_t>& blocks) {
    EXPECT_TRUE(placement.Add({id}, 0, blocks));
    return placement.Assign().at(0).worker.value;
  };
  EXPECT_EQ(place(1, {7, 8}), 0);
  EXPECT_EQ(place(2, {7, 9}), 0);     // the first block is there
  EXPECT_EQ(place(3, {5, 6}), 1);     // nobody has it
  EXPECT_EQ(place(4, {5, 8, 9}), 1);  // what follows another beginning does not count
  EXPECT_EQ(place(5, {7}), 0);
  EXPECT_EQ(place(6, {7}), 0);
  EXPECT_EQ(place(7, {7}), 0);
  EXPECT_EQ(place(8, {7, 8}), 1);  // 0 runs three more already
  // What was generated is there as well.
  placement.Computed({3}, {5, 6, 11, 12});
  for (uint64_t id = 1; id <= 8; ++id) placement.Remove({id});
  EXPECT_EQ(place(9, {5, 6, 11, 13}), 1);
  // With its worker the beginning is gone.
  placement.WorkerGone(WorkerId(1));
  EXPECT_EQ(Pairs(placement.Assign()), (Expected{{9, 0}}));
  placement.WorkerReady(WorkerId(1), 100);
  EXPECT_EQ(place(10, {5, 6}), 0);
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
      if (placement.Add({++next}, static_cast<int64_t>(random() % 8), {})) alive.insert({next});
    } else if (event < 7 && !alive.empty()) {
      const auto victim = std::next(alive.begin(), random() % alive.size());
      placement.Remove(*victim);
      alive.erase(victim);
    } else if (event == 7) {
      placement.WorkerReady(worker, 0);
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
