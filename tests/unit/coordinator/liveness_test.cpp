// Death, stall and replacement of workers and stores (FIELD rows 53, 54, 61, 62).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/fake_job.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using testing::FakeJob;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kSecond;
using ::testing::SizeIs;

class LivenessTest : public ::testing::Test {
 protected:
  LivenessTest() {
    job_.options.heartbeat_timeout_ns = 10 * kSecond;
    job_.options.stall_timeout_ns = 20 * kSecond;
  }
  // A replacement joins, with the pid that the last Spawn() gave.
  void JoinSpawned(int32_t id, ProcessRole role) {
    job_.JoinLater(id, role, 900 + static_cast<int64_t>(job_.spawned.size()));
  }

  FakeJob job_;
};

// --- a worker dies -----------------------------------------------------------------------------

TEST_F(LivenessTest, FIELD_53_TheSequencesOfADeadWorkerEndElsewhereWithTheSameText) {
  FakeJob calm;
  calm.Start(2);
  job_.Start(2);
  for (uint64_t i = 0; i < 4; ++i) {
    calm.Submit(i, "hello", 25, {"o th\xC3\xA9"});
    job_.Submit(i, "hello", 25, {"o th\xC3\xA9"});
  }
  calm.RunAll({2, 3});
  for (int i = 0; i < 5; ++i) job_.Step(2);  // inside a character: the decoder waits for its end
  job_.Step(3);
  job_.Die(2);
  const auto starts = job_.SentTo<StartSequence>(3);
  ASSERT_THAT(starts, SizeIs(4));
  EXPECT_THAT(starts[2].tokens, SizeIs(starts[2].prompt_tokens + 5));
  job_.RunAll({3});
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(job_.Text(i), calm.Text(i));
    EXPECT_EQ(job_.TokensOf(i), 25U);
    EXPECT_EQ(job_.Done(i).finish, FinishReason::kLength);
  }
  EXPECT_EQ(job_.Done(0).requeues, 1U);
  EXPECT_EQ(job_.Done(1).requeues, 0U);
  EXPECT_EQ(job_.coordinator->Snapshot(job_.now_ns).counters.requeues, 2U);
}

TEST_F(LivenessTest, FIELD_53_WhatWasDeliveredBeforeIsNotRepeated) {
  job_.Start(2);
  job_.Submit(1, "x", 30);
  const SequenceId sequence = job_.SentTo<StartSequence>(2)[0].sequence;
  job_.Say(2, CapturedPosition{sequence, 0, {1.0F}});
  job_.Step(2);
  job_.Step(2);
  job_.Die(2);
  job_.Say(2, StepReport{3, {{sequence, 3, '?'}}});  // late: it was given up
  job_.Say(3, CapturedPosition{sequence, 0, {1.0F}});
  job_.Say(3, CapturedPosition{sequence, 1, {1.0F}});
  job_.Say(3, StepReport{1, {{sequence, 1, 't'}, {sequence, 2, 'h'}, {sequence, 3, 'e'}}});
  EXPECT_EQ(job_.Text(1), "the");
  EXPECT_EQ(job_.TokensOf(1), 3U);
  EXPECT_THAT(job_.Got<RequestCapture>(), SizeIs(2));
}

TEST_F(LivenessTest, FIELD_61_WithoutAReplacementTheLastWorkersEndIsNamed) {
  job_.Start(2);
  job_.Submit(1, "x", 30);
  job_.Die(2);
  EXPECT_FALSE(job_.coordinator->result());
  job_.Die(3);
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_EQ(job_.coordinator->result()->code(), StatusCode::kUnavailable);
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("worker 3 (pid 103 on a)"));
  EXPECT_EQ(job_.Done(1).finish, FinishReason::kError);
  EXPECT_THAT(job_.Done(1).message, HasSubstr("worker 3"));
  EXPECT_EQ(job_.LastState().phase, JobPhase::kFailed);
}

TEST_F(LivenessTest, FIELD_61_AReplacementTakesOver) {
  job_.options.worker_command = {"worker"};
  job_.Start();
  job_.Submit(1, "x", 20);
  for (int i = 0; i < 7; ++i) job_.Step(2);
  job_.Die(2);
  EXPECT_THAT(job_.spawned, ElementsAre(ProcessRole::kWorker));
  EXPECT_FALSE(job_.coordinator->result());
  JoinSpawned(5, ProcessRole::kWorker);
  EXPECT_THAT(job_.SentTo<AttachStore>(5), SizeIs(1));
  job_.Say(5, WorkerReady{.arithmetic = "16 lanes"});
  job_.RunAll({5});
  EXPECT_EQ(job_.Text(1),
            "the \xC3\xA9"
            "cho the \xC3\xA9"
            "cho ");
  EXPECT_EQ(job_.TokensOf(1), 20U);
  EXPECT_EQ(job_.Done(1).requeues, 1U);
}

TEST_F(LivenessTest, AWorkerIsReplacedWhileOthersRemain) {
  job_.options.worker_command = {"worker"};
  job_.Start(2);
  job_.Die(2);
  EXPECT_THAT(job_.spawned, ElementsAre(ProcessRole::kWorker));
}

TEST_F(LivenessTest, ReplacementsThatEndBeforeTheyJoinAreTriedLaterAndThenNoMore) {
  job_.options.worker_command = {"worker"};
  job_.Start();
  job_.Submit(1, "x", 20);
  job_.Die(2);
  job_.coordinator->OnChildEnded(901, "exit code 1", job_.now_ns);
  EXPECT_THAT(job_.spawned, SizeIs(1));
  job_.Pass(Replacements::kBackOffNs[1]);
  EXPECT_THAT(job_.spawned, SizeIs(2));
  job_.coordinator->OnChildEnded(902, "exit code 1", job_.now_ns);
  job_.Pass(Replacements::kBackOffNs[2]);
  EXPECT_THAT(job_.spawned, SizeIs(3));
  EXPECT_FALSE(job_.coordinator->result());
  job_.coordinator->OnChildEnded(903, "exit code 7", job_.now_ns);
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("pid 903"));
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("exit code 7"));
  EXPECT_EQ(job_.Done(1).finish, FinishReason::kError);
}

TEST_F(LivenessTest, TheEndOfAReplacementThatHadJoinedCountsOnce) {
  job_.options.worker_command = {"worker"};
  job_.Start(2);
  job_.Die(2);
  JoinSpawned(5, ProcessRole::kWorker);
  job_.Say(5, WorkerReady{.arithmetic = "16 lanes"});
  job_.Die(5);  // plans the second, a second later
  job_.coordinator->OnChildEnded(901, "exit code 137", job_.now_ns);
  job_.Pass(kSecond);
  EXPECT_THAT(job_.spawned, SizeIs(2));
  job_.Pass(5 * kSecond);
  EXPECT_THAT(job_.spawned, SizeIs(2));
}

TEST_F(LivenessTest, AReplacementThatCannotBeStartedIsAnErrorInTheEnd) {
  job_.options.worker_command = {"worker"};
  job_.spawn_status = NotFound("no such program");
  job_.Start();
  job_.Die(2);
  job_.Pass(10 * kSecond);
  EXPECT_THAT(job_.spawned, SizeIs(3));
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("no such program"));
}

TEST_F(LivenessTest, AReplacementThatNeverJoinsIsEnded) {
  job_.options.worker_command = {"worker"};
  job_.Start(2);
  job_.Die(2);
  job_.Pass(job_.options.start_timeout_ns + kSecond);
  ASSERT_FALSE(job_.killed_children.empty());
  EXPECT_EQ(job_.killed_children[0], 901);
}

TEST_F(LivenessTest, AWorkerThatJoinsLaterGetsSequences) {
  job_.options.sequences_per_worker_max = 1;
  job_.Start();
  job_.Submit(1, "x", 3);
  job_.Submit(2, "x", 3);
  job_.JoinLater(9, ProcessRole::kWorker);
  ASSERT_THAT(job_.SentTo<AttachStore>(9), SizeIs(1));
  job_.Say(9, WorkerReady{.arithmetic = "16 lanes"});
  EXPECT_THAT(job_.SentTo<StartSequence>(9), SizeIs(1));
  job_.RunAll({2, 9});
  EXPECT_EQ(job_.Done(2).finish, FinishReason::kLength);
}

TEST_F(LivenessTest, AJoinerThatDoesNotGetReadyIsGivenUp) {
  job_.Start();
  job_.JoinLater(9, ProcessRole::kWorker, 0, "host without a store");
  job_.Pass(job_.options.start_timeout_ns + kSecond);
  EXPECT_TRUE(job_.gone.contains(ProcessId(9)));
  EXPECT_FALSE(job_.coordinator->result());
}

// --- a store dies ------------------------------------------------------------------------------

TEST_F(LivenessTest, FIELD_50_WorkersGoOnWithoutTheStoreAndItIsReplaced) {
  job_.options.store_command = {"store"};
  job_.options.worker_command = {"worker"};
  job_.Start(2);
  job_.Submit(1, "x", 20);
  job_.Step(2);
  job_.Die(1);
  EXPECT_THAT(job_.spawned, ElementsAre(ProcessRole::kStore));
  job_.RunAll({2, 3}, 3);
  job_.Die(3);  // its replacement waits for the store
  JoinSpawned(8, ProcessRole::kWorker);
  EXPECT_THAT(job_.SentTo<AttachStore>(8), IsEmpty());
  job_.JoinLater(7, ProcessRole::kStore, 901);
  job_.Say(7, LoadProgress{1, 2});  // the job stays ready
  EXPECT_EQ(job_.LastState().phase, JobPhase::kReady);
  StoreReady adopted = FakeJob::Segment();
  adopted.adopted = true;
  job_.Say(7, adopted);
  EXPECT_THAT(job_.SentTo<AttachStore>(8), SizeIs(1));
  job_.RunAll({2});
  EXPECT_EQ(job_.Done(1).finish, FinishReason::kLength);
  EXPECT_EQ(job_.Done(1).requeues, 0U);
}

TEST_F(LivenessTest, BeforeReadinessADeathEndsTheJob) {
  job_.options.worker_command = {"worker"};
  job_.Create();
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.Die(2);
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("worker 2"));
  EXPECT_THAT(job_.spawned, IsEmpty());
}

// --- other hosts and guests ---------------------------------------------------------------------

TEST_F(LivenessTest, ALostHostIsNotReplacedAndItsSequencesEndHere) {
  job_.options.worker_command = {"worker"};
  job_.options.store_command = {"store"};
  job_.options.workers_expected = 2;
  job_.Create();
  job_.coordinator->OnClient(ClientId(1));
  job_.Join(1, ProcessRole::kStore, 0, "b");
  job_.Join(2, ProcessRole::kStore);
  job_.Join(3, ProcessRole::kWorker, 0, "b");
  job_.Join(4, ProcessRole::kWorker);
  for (const int32_t store : {1, 2}) job_.Say(store, FakeJob::Segment());
  for (const int32_t worker : {3, 4}) job_.Say(worker, WorkerReady{});
  job_.Submit(1, "x", 20);
  ASSERT_THAT(job_.SentTo<StartSequence>(3), SizeIs(1));
  job_.Step(3);
  job_.Pass(11 * kSecond, {1, 3});  // the cable is cut: silence
  EXPECT_TRUE(job_.gone.contains(ProcessId(1)));
  EXPECT_TRUE(job_.gone.contains(ProcessId(3)));
  job_.RunAll({4});
  EXPECT_EQ(job_.TokensOf(1), 20U);
  EXPECT_THAT(job_.spawned, IsEmpty());
}

TEST_F(LivenessTest, TheLastWorkerIsReplacedHereWhereverItWas) {
  job_.options.worker_command = {"worker"};
  job_.Create();
  job_.coordinator->OnClient(ClientId(1));
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kStore, 0, "b");
  job_.Join(3, ProcessRole::kWorker, 0, "b");
  job_.Say(1, FakeJob::Segment());
  job_.Say(2, FakeJob::Segment());
  job_.Say(3, WorkerReady{});
  job_.Die(3);
  EXPECT_THAT(job_.spawned, ElementsAre(ProcessRole::kWorker));
  EXPECT_FALSE(job_.coordinator->result());
}

TEST_F(LivenessTest, AGuestThatLeavesIsNotReplaced) {
  job_.options.worker_command = {"worker"};
  job_.Start();
  job_.JoinLater(9, ProcessRole::kWorker);
  job_.Say(9, WorkerReady{});
  job_.Die(9);
  EXPECT_THAT(job_.spawned, IsEmpty());
}

TEST_F(LivenessTest, AGuestOfAnotherHostIsNotTakenForTheReplacementWithItsPid) {
  job_.options.worker_command = {"worker"};
  job_.Start(2);
  job_.Die(2);
  job_.JoinLater(9, ProcessRole::kWorker, 901, "b");
  job_.coordinator->OnChildEnded(901, "exit code 1", job_.now_ns);
  job_.Pass(Replacements::kBackOffNs[1]);
  EXPECT_THAT(job_.spawned, SizeIs(2));
}

TEST_F(LivenessTest, AGuestWithAnotherModelIsToldSoAndTheJobGoesOn) {
  job_.Start();
  job_.JoinLater(9, ProcessRole::kStore, 0, "b");
  job_.Say(9, FakeJob::Segment("another"));
  const auto refusals = job_.SentTo<FatalError>(9);
  ASSERT_THAT(refusals, SizeIs(1));
  EXPECT_EQ(refusals[0].code, static_cast<uint8_t>(StatusCode::kInvalidArgument));
  EXPECT_THAT(refusals[0].message, HasSubstr("another model"));
  EXPECT_TRUE(job_.gone.contains(ProcessId(9)));
  EXPECT_FALSE(job_.coordinator->result());
}

TEST_F(LivenessTest, AGuestsFailureDoesNotEndAJobThatStarts) {
  job_.Create();
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.JoinLater(9, ProcessRole::kStore, 0, "b");
  job_.JoinLater(10, ProcessRole::kWorker, 0, "b");
  job_.Say(9, FatalError{static_cast<uint8_t>(StatusCode::kNotFound), "no such model"});
  job_.Die(10);
  EXPECT_FALSE(job_.coordinator->result());
  job_.Say(1, FakeJob::Segment());
  job_.Say(2, WorkerReady{});
  EXPECT_EQ(job_.coordinator->Snapshot(job_.now_ns).phase, JobPhase::kReady);
}

TEST_F(LivenessTest, AGuestsModelIsNotTakenForTheJobs) {
  job_.Create();
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.JoinLater(9, ProcessRole::kStore, 0, "b");
  job_.JoinLater(10, ProcessRole::kStore, 0, "c");
  job_.JoinLater(11, ProcessRole::kWorker, 0, "c");
  job_.Say(9, FakeJob::Segment("another"));
  job_.Say(10, FakeJob::Segment());
  EXPECT_THAT(job_.SentTo<AttachStore>(11), IsEmpty());
  job_.Say(1, FakeJob::Segment());
  EXPECT_TRUE(job_.gone.contains(ProcessId(9)));
  EXPECT_FALSE(job_.coordinator->result());
  EXPECT_THAT(job_.SentTo<AttachStore>(2), SizeIs(1));
  EXPECT_THAT(job_.SentTo<AttachStore>(11), SizeIs(1));
}

TEST_F(LivenessTest, FIELD_53_ProcessesOfOtherHostsGetSignsOfLife) {
  job_.Start();
  job_.JoinLater(9, ProcessRole::kWorker, 0, "b");
  job_.Pass(5 * kSecond);
  EXPECT_THAT(job_.SentTo<Heartbeat>(9), SizeIs(5));
  EXPECT_THAT(job_.SentTo<Heartbeat>(2), IsEmpty());  // it sees our death at once
}

// --- silence and stalls ------------------------------------------------------------------------

TEST_F(LivenessTest, FIELD_53_ASilentWorkerIsGivenUp) {
  job_.Start(2);
  job_.Submit(1, "x", 20);
  job_.Pass(10 * kSecond, {2});
  EXPECT_THAT(job_.killed, IsEmpty());
  job_.Pass(kSecond, {2});
  EXPECT_THAT(job_.killed, ElementsAre(ProcessId(2)));
  EXPECT_THAT(job_.SentTo<StartSequence>(3), SizeIs(1));
  EXPECT_EQ(job_.coordinator->Snapshot(job_.now_ns).counters.stalls, 0U);
}

TEST_F(LivenessTest, FIELD_54_AWorkerThatBeatsButDoesNotProgressIsGivenUp) {
  job_.Start(2);
  job_.Submit(1, "x", 20);
  for (int second = 0; second <= 20; ++second) {
    EXPECT_THAT(job_.killed, IsEmpty()) << second;
    job_.Say(2, Heartbeat{5, true});
    job_.Say(3, Heartbeat{static_cast<uint64_t>(second), true});
    job_.Pass(kSecond, {2, 3});
  }
  EXPECT_THAT(job_.killed, ElementsAre(ProcessId(2)));
  EXPECT_EQ(job_.coordinator->Snapshot(job_.now_ns).counters.stalls, 1U);
  EXPECT_THAT(job_.SentTo<StartSequence>(3), SizeIs(1));
}

TEST_F(LivenessTest, AnIdleWorkerDoesNotStall) {
  job_.Start();
  job_.Pass(60 * kSecond);
  job_.Say(2, Heartbeat{0, true});  // the first work after a long rest
  job_.coordinator->OnTick(job_.now_ns);
  EXPECT_THAT(job_.killed, IsEmpty());
}

TEST_F(LivenessTest, AWorkerThatBuildsItsEngineMayBeSilent) {
  job_.Create();
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.Say(1, FakeJob::Segment());
  job_.Pass(30 * kSecond, {2});
  EXPECT_FALSE(job_.coordinator->result());
  job_.Say(2, WorkerReady{.arithmetic = "16 lanes"});
  EXPECT_THAT(job_.killed, IsEmpty());
}

TEST_F(LivenessTest, TheCoordinatorsOwnPauseIsNobodysSilence) {
  job_.Start(2);
  job_.now_ns += 3600 * kSecond;
  job_.coordinator->OnTick(job_.now_ns);
  EXPECT_THAT(job_.killed, IsEmpty());
  job_.Pass(11 * kSecond, {2});
  EXPECT_THAT(job_.killed, ElementsAre(ProcessId(2)));
}

// A request that every worker dies of does not go on for ever.
TEST_F(LivenessTest, ARequestThatRanOnTooManyDeadWorkersIsGivenUp) {
  job_.options.worker_command.clear();
  job_.Start(12);
  job_.Submit(1, "x", 30);
  int32_t deaths = 0;
  for (int32_t worker = 2; worker < 14 && job_.Got<RequestDone>().empty(); ++worker) {
    for (int32_t id = 2; id < 14; ++id) {
      if (job_.gone.contains(ProcessId(id)) || job_.running[ProcessId(id)].empty()) continue;
      job_.Die(id);
      ++deaths;
      break;
    }
  }
  EXPECT_EQ(deaths, 9);
  EXPECT_EQ(job_.Done(1).finish, FinishReason::kError);
  EXPECT_THAT(job_.Done(1).message, HasSubstr("9 workers died"));
  job_.Submit(2, "x", 3);
  EXPECT_FALSE(job_.coordinator->result());
}

}  // namespace
}  // namespace expertflow
