#include "worker/schedule/step_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "tests/unit/worker_schedule/ascending_tokens.h"

namespace expertflow {
namespace {

using testing::Ascending;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A worker without a model: the token after a sequence's tokens is their number.
class Worker {
 public:
  Worker(const SchedulerOptions& options, int64_t blocks, const ExpertDemand* demand = nullptr)
      : scheduler_(options, blocks, demand) {}

  void Start(uint64_t id, std::vector<int32_t> tokens, int32_t new_tokens, int64_t rank = 0) {
    auto sequence = std::make_unique<ScheduledSequence>();
    sequence->id = {id};
    sequence->rank = rank;
    sequence->reuse_max = INT64_MAX;
    sequence->prompt_tokens = static_cast<int32_t>(tokens.size());
    sequence->tokens = std::move(tokens);
    scheduler_.Add(sequence.get());
    left_[id] = new_tokens;
    sequences_.emplace(id, std::move(sequence));
  }
  void Cancel(uint64_t id) {
    scheduler_.Remove(sequences_.at(id).get());
    sequences_.erase(id);
  }
  struct Row {
    uint64_t id;
    int32_t count;
    bool operator==(const Row&) const = default;
  };
  // One step; what it computed. Sequences that have all their tokens end.
  std::vector<Row> Step(bool reuse = true) {
    const StepPlan& plan = scheduler_.Plan(reuse);
    std::vector<Row> rows;
    std::vector<ScheduledSequence*> drawn;
    preempted_.clear();
    for (const ScheduledSequence* sequence : plan.preempted)
      preempted_.push_back(sequence->id.value);
    copies_ += plan.copies.size();
    for (const StepPlan::Copy& copy : plan.copies) {
      EXPECT_THAT(copy.sequence->kv.blocks, ::testing::Contains(copy.to)) << "not its block";
    }
    for (const StepPlan::Rows& each : plan.rows) {
      rows.push_back({each.sequence->id.value, each.count});
      computed_ += each.count;
      if (each.sequence->pending() == each.count) drawn.push_back(each.sequence);
    }
    scheduler_.Advance();
    for (ScheduledSequence* sequence : drawn) {
      sequence->tokens.push_back(static_cast<int32_t>(sequence->tokens.size()));
      const uint64_t id = sequence->id.value;
      if (--left_[id] > 0) continue;
      ended_[id] = sequence->tokens;
      cached_[id] = sequence->cached_tokens;
      Cancel(id);
    }
    const Status status = scheduler_.CheckInvariants();
    EXPECT_TRUE(status.ok()) << status.ToString();
    return rows;
  }
  int RunToEnd(int steps_max = 10'000) {
    int steps = 0;
    while (!sequences_.empty() && steps < steps_max) {
      EXPECT_FALSE(Step().empty()) << "nothing advances";
      ++steps;
    }
    EXPECT_TRUE(sequences_.empty());
    return steps;
  }

  StepScheduler scheduler_;
  std::map<uint64_t, std::unique_ptr<ScheduledSequence>> sequences_;
  std::map<uint64_t, int32_t> left_;
  std::map<uint64_t, std::vector<int32_t>> ended_;
  std::map<uint64_t, int32_t> cached_;
  std::vector<uint64_t> preempted_;
  size_t copies_ = 0;
  int64_t computed_ = 0;
};

using Rows = std::vector<Worker::Row>;

TEST(StepSchedulerTest, DecodesAndPromptChunksUnderABudget) {
  Worker worker({.prefill_tokens_max = 20}, 20);
  worker.Start(1, {5}, 9);
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}}));
  worker.Start(2, Ascending(100, 30), 9);
  worker.Start(3, Ascending(200, 5), 9);
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}, {2, 20}}));
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}, {2, 10}, {3, 5}}));
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}, {2, 1}, {3, 1}}));
}

TEST(StepSchedulerTest, StaticBatchesEndTogether) {
  Worker worker({.sequences_max = 2, .static_batches = true}, 20);
  worker.Start(1, {5}, 2);
  worker.Start(2, {6}, 4);
  worker.Start(3, {7}, 1);
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(worker.Step(), (Rows{{2, 1}}));
  EXPECT_EQ(worker.Step(), (Rows{{2, 1}}));
  EXPECT_EQ(worker.Step(), (Rows{{3, 1}}));
}

TEST(StepSchedulerTest, LowerRanksGoFirst) {
  Worker worker({.sequences_max = 1, .prefill_tokens_max = 8}, 20);
  worker.Start(1, {5}, 2, 50);
  worker.Step();
  worker.Start(2, {6}, 1, 90);
  worker.Start(3, {7}, 1, 10);
  worker.Start(4, {8}, 1, 90);
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}}));  // what runs goes on
  EXPECT_EQ(worker.Step(), (Rows{{3, 1}}));
  EXPECT_EQ(worker.Step(), (Rows{{2, 1}}));
  EXPECT_EQ(worker.Step(), (Rows{{4, 1}}));
}

// Tokens below 100 use expert 0, others expert 1.
ExpertDemand TwoKinds() {
  ExpertDemand demand(1, 2, 200);
  for (int32_t token = 0; token < 200; ++token) {
    const int32_t expert = token < 100 ? 0 : 1;
    for (int i = 0; i < 50; ++i) demand.Observe(token, LayerId(0), {&expert, 1});
  }
  return demand;
}

TEST(StepSchedulerTest, WhoNeedsTheSameExpertsGoesNextButOvertakesNobodyForEver) {
  const ExpertDemand demand = TwoKinds();
  Worker worker({.sequences_max = 2}, 50, &demand);
  worker.Start(1, {5}, 100);
  worker.Start(2, {105}, 1);  // another kind
  for (uint64_t id = 3; id <= 12; ++id) worker.Start(id, {static_cast<int32_t>(id)}, 1);
  std::vector<uint64_t> order;
  for (int step = 0; step < 11; ++step) {
    for (const Worker::Row& row : worker.Step()) {
      if (row.id != 1) order.push_back(row.id);
    }
  }
  // Two is overtaken four times for each place.
  EXPECT_THAT(order, ElementsAre(3, 4, 5, 6, 7, 8, 9, 10, 2, 11, 12));
  worker.RunToEnd();
}

// Two that would need four blocks at their ends share three.
TEST(StepSchedulerTest, TheHighestRankIsPreemptedAndGoesOn) {
  Worker worker({.reuse_prefixes = false}, 3);
  worker.Start(1, Ascending(100, 10), 20);
  worker.Start(2, Ascending(200, 10), 20);
  for (int step = 0; step < 7; ++step) {
    EXPECT_EQ(worker.Step().size(), 2U);
    EXPECT_THAT(worker.preempted_, IsEmpty());
  }
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}}));  // it has the third block
  EXPECT_THAT(worker.preempted_, ElementsAre(2));
  worker.RunToEnd();
  EXPECT_EQ(worker.scheduler_.preemptions(), 1U);
  for (const uint64_t id : {1, 2}) EXPECT_EQ(worker.ended_[id].size(), 30U);
  EXPECT_EQ(worker.scheduler_.kv().held(), 0);
}

TEST(StepSchedulerTest, NobodyOvertakesAWaitingOneOfALowerRank) {
  Worker worker({}, 4);
  worker.Start(1, Ascending(100, 20), 2);
  worker.Step();
  worker.Start(2, Ascending(200, 40), 1);  // three blocks: waits for 1
  worker.Start(3, {7}, 1);                 // one would be free
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}}));
  EXPECT_EQ(worker.Step(), (Rows{{2, 40}}));
  worker.RunToEnd();
}

// A beginning that all have in common takes its blocks once.
TEST(StepSchedulerTest, SharedBlocksLeaveRoomForMore) {
  Worker worker({}, 10);
  for (uint64_t id = 1; id <= 4; ++id) {
    std::vector<int32_t> tokens = Ascending(100, 64);
    tokens.push_back(static_cast<int32_t>(id));
    worker.Start(id, tokens, 3);
  }
  worker.Step();
  EXPECT_EQ(worker.Step().size(), 1U + 2);
  EXPECT_EQ(worker.scheduler_.running(), 3U);  // and a block for each to grow
  worker.RunToEnd();
  EXPECT_EQ(worker.cached_[1], 0);
  for (uint64_t id = 2; id <= 4; ++id) EXPECT_EQ(worker.cached_[id], 64) << id;
}

// The second waits for the first's chunks instead of computing them, too.
TEST(StepSchedulerTest, WhatAnotherComputesInTheSameStepIsNotComputedTwice) {
  Worker worker({.prefill_tokens_max = 40}, 20);
  worker.Start(1, Ascending(100, 70), 2);
  worker.Start(2, Ascending(100, 70), 2);
  EXPECT_EQ(worker.Step(), (Rows{{1, 40}}));
  EXPECT_EQ(worker.Step(), (Rows{{1, 30}}));
  EXPECT_EQ(worker.Step(), (Rows{{1, 1}, {2, 6}}));
  worker.RunToEnd();
  EXPECT_EQ(worker.cached_[1], 0);
  EXPECT_EQ(worker.cached_[2], 64);
  EXPECT_EQ(worker.computed_, 70 + 1 + 6 + 1);

  // When the first goes, the second does it.
  worker.Start(3, Ascending(500, 70), 2);
  worker.Start(4, Ascending(500, 70), 2);
  EXPECT_EQ(worker.Step(), (Rows{{3, 40}}));
  worker.Cancel(3);
  EXPECT_EQ(worker.Step(), (Rows{{4, 38}}));  // the two full blocks are there
}

TEST(StepSchedulerTest, CachedTokensCountOnceAndOnlyOfThePrompt) {
  Worker worker({}, 4);
  worker.Start(1, Ascending(100, 20), 1);
  worker.RunToEnd();
  EXPECT_EQ(worker.cached_[1], 0);
  // Everything but the last token, of which the rest of a block is copied.
  worker.Start(2, Ascending(100, 16), 1);
  worker.RunToEnd();
  EXPECT_EQ(worker.cached_[2], 15);
  EXPECT_EQ(worker.copies_, 1U);
  worker.Start(3, Ascending(100, 18), 1);
  worker.RunToEnd();
  EXPECT_EQ(worker.cached_[3], 16);
  // What it computed itself, lost and found again is not cached by anybody.
  worker.Start(4, Ascending(300, 20), 30, 1);
  worker.Step();
  worker.Start(5, Ascending(400, 12), 40, 0);
  worker.RunToEnd();
  EXPECT_GE(worker.scheduler_.preemptions(), 1U);
  EXPECT_EQ(worker.cached_[4], 0);
}

TEST(StepSchedulerTest, WhatHasToBeComputedIsNotReused) {
  Worker worker({}, 10);
  worker.Start(1, Ascending(100, 48), 1);
  worker.RunToEnd();
  worker.Start(2, Ascending(100, 48), 1);
  worker.sequences_.at(2)->reuse_max = 20;
  EXPECT_EQ(worker.Step(), (Rows{{2, 28}}));
  worker.Start(3, Ascending(100, 48), 1);
  EXPECT_EQ(worker.Step(/*reuse=*/false), (Rows{{3, 48}}));
}

// Whatever comes, in however little memory: everything ends with its text, and nothing stands
// still.
TEST(StepSchedulerTest, RandomLoadsEndAsTheyShould) {
  uint64_t preemptions = 0;
  uint64_t reused = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto blocks = static_cast<int64_t>(4 + random() % 12);
    const ExpertDemand demand = TwoKinds();
    Worker worker({.sequences_max = static_cast<int32_t>(1 + random() % 8),
                   .prefill_tokens_max = static_cast<int32_t>(1 + random() % 40),
                   .reuse_prefixes = random() % 4 != 0},
                  blocks, random() % 2 == 0 ? &demand : nullptr);
    std::map<uint64_t, std::vector<int32_t>> expected;
    uint64_t next = 0;
    for (int event = 0; event < 400; ++event) {
      if (random() % 4 == 0) {
        const auto prompt = static_cast<int32_t>(1 + random() % (blocks * 8));
        const auto count = static_cast<int32_t>(1 + random() % (blocks * 8));
        std::vector<int32_t> tokens = Ascending(random() % 3 == 0 ? 1000 : 2000, prompt);
        if (random() % 2 == 0) tokens[random() % tokens.size()] = 7;
        worker.Start(++next, tokens, count, static_cast<int64_t>(random() % 5));
        for (int32_t i = 0; i < count; ++i) tokens.push_back(prompt + i);
        expected[next] = std::move(tokens);
      } else if (random() % 16 == 0 && !worker.sequences_.empty()) {
        const uint64_t id = worker.sequences_.begin()->first;
        worker.Cancel(id);
        expected.erase(id);
      }
      const bool has_work = !worker.sequences_.empty();
      EXPECT_EQ(!worker.Step(random() % 8 != 0).empty(), has_work) << "seed " << seed;
    }
    worker.RunToEnd();
    EXPECT_EQ(worker.ended_, expected) << "seed " << seed;
    EXPECT_EQ(worker.scheduler_.kv().held(), 0);
    preemptions += worker.scheduler_.preemptions();
    reused += worker.scheduler_.reused_tokens();
  }
  EXPECT_GT(preemptions, 500U);
  EXPECT_GT(reused, 10'000U);
}

}  // namespace
}  // namespace expertflow
