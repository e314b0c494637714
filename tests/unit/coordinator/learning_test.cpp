// What predictors of workers learn, through the coordinator: added up once, published to all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "predictor/core/published_stride.h"
#include "tests/unit/coordinator/fake_job.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using testing::FakeJob;
using testing::kSecond;

// The worker's batch: a leaf and a token id.
PredictorLearnt Batch(uint64_t number, uint32_t leaf, int32_t token) {
  PredictorLearnt learnt;
  learnt.number = number;
  learnt.sums.leaves = {leaf};
  learnt.sums.leaf_count = {2};
  learnt.sums.leaf_rest = {-1000};
  learnt.sums.tokens = {token};
  learnt.sums.token_count = {1};
  learnt.sums.token_experts = {2};
  learnt.sums.experts = {3, 9};
  learnt.sums.uses = {1, 1};
  return learnt;
}

const PredictorVersion& LastPosted(const FakeJob& job) {
  static const PredictorVersion kNone;
  EXPECT_FALSE(job.board.empty());
  return job.board.empty() ? kNone : std::get<PredictorVersion>(job.board.back());
}

// A store and a worker, ids 4 and 5, on another host.
void JoinElsewhere(FakeJob& job) {
  job.JoinLater(4, ProcessRole::kStore, 0, "b");
  job.Say(4, FakeJob::Segment());
  job.JoinLater(5, ProcessRole::kWorker, 0, "b");
  job.Say(5, WorkerReady{.arithmetic = "16 lanes"});
}

TEST(LearningTest, WorkersOfTheHostAreToldOfTheBoardBeforeTheStore) {
  FakeJob job;
  job.Start(2);
  JoinElsewhere(job);
  for (const int32_t worker : {2, 3}) {
    const std::vector<Message>& sent = job.sent[ProcessId(worker)];
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(std::get<PublishBoard>(sent[0]).id, 77u);
    EXPECT_TRUE(std::holds_alternative<AttachStore>(sent[1]));
  }
  EXPECT_TRUE(job.SentTo<PublishBoard>(5).empty());
}

TEST(LearningTest, WhatTwoWorkersLearnIsAddedUpAndPosted) {
  FakeJob job;
  job.Start(2);
  job.Pass(kSecond);
  EXPECT_TRUE(job.board.empty());  // nothing was learnt
  job.Say(2, Batch(1, 7, 100));
  job.Say(3, Batch(1, 7, 50));
  job.Say(3, Batch(1, 7, 50));  // twice
  job.Pass(kSecond);
  ASSERT_EQ(job.board.size(), 1u);  // only when something is new
  const PredictorVersion& version = LastPosted(job);
  EXPECT_EQ(version.version, 1u);
  EXPECT_THAT(version.sums.leaves, ElementsAre(7));
  EXPECT_THAT(version.sums.leaf_count, ElementsAre(4));
  EXPECT_THAT(version.sums.leaf_rest, ElementsAre(-2000));
  EXPECT_THAT(version.sums.tokens, ElementsAre(50, 100));
  ASSERT_EQ(version.included.size(), 2u);
  EXPECT_EQ(version.included[0].process, 2);
  EXPECT_EQ(version.included[1].number, 1u);

  job.Say(2, Batch(2, 8, 100));
  job.Pass(kSecond);
  ASSERT_EQ(job.board.size(), 2u);
  EXPECT_THAT(LastPosted(job).sums.leaves, ElementsAre(7, 8));
  EXPECT_THAT(LastPosted(job).leaf_version, ElementsAre(1, 2));
  EXPECT_THAT(LastPosted(job).token_version, ElementsAre(1, 2));
  EXPECT_EQ(LastPosted(job).included[0].number, 2u);

  const LearningSnapshot learning = job.coordinator->Snapshot(job.now_ns + kSecond).learning;
  EXPECT_EQ(learning.version, 2u);
  EXPECT_EQ(learning.batches, 3u);
  EXPECT_EQ(learning.tokens, 2u);
  EXPECT_GE(learning.age_ns, kSecond);
}

TEST(LearningTest, WorkersOfOtherHostsGetWhatHasChangedAndALateOneGetsAll) {
  FakeJob job;
  job.Start(1);
  job.Say(2, Batch(1, 7, 100));
  job.Pass(kSecond);
  JoinElsewhere(job);
  auto sent = job.SentTo<PredictorVersion>(5);
  ASSERT_EQ(sent.size(), 1u);  // at once
  EXPECT_THAT(sent[0].sums.leaves, ElementsAre(7));
  ASSERT_EQ(sent[0].included.size(), 1u);
  EXPECT_EQ(sent[0].included[0].process, 5);
  EXPECT_EQ(sent[0].included[0].number, 0u);

  job.Say(5, Batch(1, 9, 100));
  job.Pass(kSecond);
  sent = job.SentTo<PredictorVersion>(5);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].version, 2u);
  EXPECT_THAT(sent[1].sums.leaves, ElementsAre(9));
  EXPECT_THAT(sent[1].sums.token_count, ElementsAre(2));
  EXPECT_EQ(sent[1].included[0].number, 1u);
  EXPECT_TRUE(job.SentTo<PredictorVersion>(2).empty());  // it reads the board
}

// Of 1,200 uses at distance 2 the predictor found none; the workers take the pre-gate there.
TEST(LearningTest, WhereThePreGateIsBetterIsSaidToAll) {
  FakeJob job;
  job.Start(2);
  for (const int32_t worker : {2, 3}) {
    PredictorLearnt learnt;
    learnt.number = 1;
    learnt.sums.recall.resize(8);
    learnt.sums.recall[1] = {150, 600, 0, 450, 65536 * 300};
    job.Say(worker, learnt);
  }
  // Not before it is published.
  EXPECT_FALSE(job.coordinator->Snapshot(job.now_ns).learning.recall[0].falls_back);
  job.Pass(kSecond);
  EXPECT_EQ(LastPosted(job).pre_gate_distances, 2u);
  const auto recall = job.coordinator->Snapshot(job.now_ns).learning.recall;
  ASSERT_EQ(recall.size(), 1u);
  EXPECT_EQ(recall[0].distance, 2);
  EXPECT_TRUE(recall[0].falls_back);
  EXPECT_NEAR(recall[0].pre_gate_recall, 0.75, 1e-6);
  EXPECT_NEAR(recall[0].overconfidence, 0.5, 1e-6);
}

TEST(LearningTest, WhatAWorkerLearntOutlivesIt) {
  FakeJob job;
  job.Start(2);
  job.Say(2, Batch(5, 7, 100));
  job.Die(2);
  job.JoinLater(6, ProcessRole::kWorker);
  job.Say(6, WorkerReady{.arithmetic = "16 lanes"});
  job.Say(6, Batch(1, 7, 100));  // it counts from one
  job.Pass(kSecond);
  EXPECT_THAT(LastPosted(job).sums.token_count, ElementsAre(2));
  EXPECT_EQ(LastPosted(job).included.back().process, 6);
  EXPECT_EQ(LastPosted(job).included.back().number, 1u);
}

TEST(LearningTest, WhatCannotBeEndsItsSenderOnly) {
  FakeJob job;
  job.Start(2);
  PredictorLearnt bad = Batch(1, 7, 100);
  bad.sums.uses.pop_back();
  job.Say(2, bad);
  EXPECT_TRUE(job.gone.contains(ProcessId(2)));
  job.Pass(kSecond);
  EXPECT_TRUE(job.board.empty());
  EXPECT_EQ(job.coordinator->result(), std::nullopt);
}

TEST(LearningTest, EachForItselfMeansThatNothingIsPublished) {
  FakeJob job;
  job.options.shares_learning = false;
  job.Start(2);
  job.Say(2, Batch(1, 7, 100));
  job.Pass(kSecond);
  EXPECT_TRUE(job.board.empty());
  EXPECT_EQ(job.coordinator->Snapshot(job.now_ns).learning.version, 0u);
}

// --- the lead of all workers' prefetch ----------------------------------------------------------

// Ten layers that miss one expert of a megabyte each, over a link that takes `copy_us` for it.
StrideReport Measured(uint64_t copy_us) {
  StrideReport report;
  report.expert_bytes = 1'000'000;
  report.stride_max = 8;
  report.events = report.timed_events = 10;
  report.distinct = report.expected = 40;
  report.cached = 30;
  report.prefetch_hits = 10;
  report.copied = 10'000'000;
  report.busy_ns = 10 * copy_us * 1000;
  report.layer_ns = 20'000'000;
  report.stall_ns = 10'000'000;
  return report;
}

TEST(LearningTest, OneLeadForAllWorkersIsPublishedWhenItChanges) {
  FakeJob job;
  job.Start(2);
  JoinElsewhere(job);
  job.Say(2, Measured(500));
  ASSERT_EQ(job.board_words.size(), 1u);
  EXPECT_EQ(UnpackStride(job.board_words[0]).stride, 1);
  job.Say(2, Measured(500));
  EXPECT_EQ(job.board_words.size(), 1u);
  ASSERT_EQ(job.SentTo<StridePublished>(5).size(), 1u);
  EXPECT_EQ(job.SentTo<StridePublished>(5)[0].word, job.board_words[0]);
  EXPECT_TRUE(job.SentTo<StridePublished>(2).empty());  // it reads the board

  // Another one's link is far slower, and counts as much.
  for (int i = 0; i < 8; ++i) {
    job.Say(3, Measured(4500));
    job.Say(2, Measured(500));
  }
  const PublishedStride now = UnpackStride(job.board_words.back());
  EXPECT_GT(now.stride, 1);
  const StrideSnapshot snapshot = job.coordinator->Snapshot(job.now_ns).stride;
  EXPECT_EQ(snapshot.stride, static_cast<uint32_t>(now.stride));
  EXPECT_EQ(snapshot.number, now.number);
  EXPECT_GE(snapshot.moves.size(), 2u);
  EXPECT_EQ(snapshot.moves.back().stride, snapshot.stride);
  EXPECT_NE(StatusJson(job.coordinator->Snapshot(job.now_ns)).find("\"stride\": {"),
            std::string::npos);

  // One that comes later has it at once.
  job.JoinLater(6, ProcessRole::kWorker, 0, "b");
  job.Say(6, WorkerReady{.arithmetic = "16 lanes"});
  ASSERT_EQ(job.SentTo<StridePublished>(6).size(), 1u);
  EXPECT_EQ(job.SentTo<StridePublished>(6)[0].word, job.board_words.back());
}

TEST(LearningTest, ALeadOfTheWorkersOwnIsNotPublished) {
  FakeJob job;
  job.options.shares_stride = false;
  job.Start(1);
  job.Say(2, Measured(500));
  EXPECT_TRUE(job.board_words.empty());
  EXPECT_EQ(job.coordinator->Snapshot(job.now_ns).stride.stride, 0u);
}

TEST(LearningTest, ReportsThatMakeNoSenseDoNoHarm) {
  FakeJob job;
  job.Start(1);
  StrideReport odd;
  odd.stride_max = UINT32_MAX;
  odd.expert_bytes = UINT64_MAX;
  odd.events = 1;
  odd.timed_events = UINT64_MAX;
  odd.distinct = 1;
  odd.expected = UINT64_MAX;
  odd.copied = UINT64_MAX;
  odd.busy_ns = 1;
  odd.layer_ns = 1;
  odd.stall_ns = UINT64_MAX;
  for (int i = 0; i < 5; ++i) job.Say(2, odd);
  job.Say(2, StrideReport{});
  const PublishedStride published = UnpackStride(job.board_words.back());
  EXPECT_GE(published.stride, 1);
  EXPECT_LE(published.stride, 64);
}

}  // namespace
}  // namespace expertflow
