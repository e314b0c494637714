// The state machine: start, requests, clients. Death and replacement: liveness_test.cpp.
#include "coordinator/coordinator.h"

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

class CoordinatorTest : public ::testing::Test {
 protected:
  FakeJob job_;
};

// --- start -------------------------------------------------------------------------------------

TEST_F(CoordinatorTest, AWorkerIsAttachedOnceTheStoreOfItsHostIsReady) {
  job_.Create();
  job_.coordinator->OnClient(ClientId(1));
  EXPECT_EQ(job_.LastState().phase, JobPhase::kStarting);
  job_.Join(2, ProcessRole::kWorker);
  job_.Join(3, ProcessRole::kWorker, 0, "b");
  job_.Join(1, ProcessRole::kStore);
  EXPECT_THAT(job_.SentTo<AttachStore>(2), IsEmpty());
  job_.Say(1, LoadProgress{10, 100});
  EXPECT_EQ(job_.LastState().phase, JobPhase::kLoading);
  EXPECT_EQ(job_.LastState().bytes_done, 10U);
  EXPECT_EQ(job_.LastState().bytes_total, 100U);
  job_.Say(1, FakeJob::Segment());
  ASSERT_THAT(job_.SentTo<AttachStore>(2), SizeIs(1));
  EXPECT_EQ(job_.SentTo<AttachStore>(2)[0].store.name, "segment");
  EXPECT_THAT(job_.SentTo<AttachStore>(3), IsEmpty());  // its host has no store
  job_.Say(2, WorkerReady{.arithmetic = "16 lanes"});
  EXPECT_EQ(job_.LastState().phase, JobPhase::kReady);
}

TEST_F(CoordinatorTest, RequestsThatCameEarlyStartWhenAllWorkersAreReady) {
  job_.options.workers_expected = 2;
  job_.Create();
  job_.coordinator->OnClient(ClientId(1));
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.Join(3, ProcessRole::kWorker);
  job_.Say(1, FakeJob::Segment());
  job_.Submit(1, "a", 3);
  job_.Submit(2, "b", 3);
  job_.Say(2, WorkerReady{.arithmetic = "16 lanes"});
  EXPECT_THAT(job_.SentTo<StartSequence>(2), IsEmpty());
  job_.Say(3, WorkerReady{.arithmetic = "16 lanes"});
  EXPECT_THAT(job_.SentTo<StartSequence>(2), SizeIs(1));
  EXPECT_THAT(job_.SentTo<StartSequence>(3), SizeIs(1));
}

TEST_F(CoordinatorTest, AnErrorBeforeReadinessEndsTheJobWithIt) {
  job_.Create();
  job_.coordinator->OnClient(ClientId(1));
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.Submit(7, "a", 3);
  job_.Say(1, FatalError{static_cast<uint8_t>(StatusCode::kResourceExhausted), "/dev/shm: full"});
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_EQ(job_.coordinator->result()->code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(job_.LastState().phase, JobPhase::kFailed);
  EXPECT_EQ(job_.LastState().code, static_cast<uint8_t>(StatusCode::kResourceExhausted));
  EXPECT_EQ(job_.LastState().message, "/dev/shm: full");
  EXPECT_EQ(job_.Done(7).finish, FinishReason::kError);
  EXPECT_THAT(job_.SentTo<Shutdown>(2), SizeIs(1));
}

TEST_F(CoordinatorTest, ASlowStartEndsWithWhatIsMissing) {
  job_.options.workers_expected = 2;
  job_.Create();
  job_.coordinator->OnClient(ClientId(1));
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.Say(1, FakeJob::Segment());
  job_.Say(2, WorkerReady{.arithmetic = "16 lanes"});
  job_.Pass(job_.options.start_timeout_ns);
  EXPECT_FALSE(job_.coordinator->result());
  job_.Pass(kSecond);
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_EQ(job_.coordinator->result()->code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("1 of 2 workers"));
  EXPECT_EQ(job_.LastState().phase, JobPhase::kFailed);
}

TEST_F(CoordinatorTest, AClientThatComesLateGetsTheStateAtOnce) {
  job_.Start();
  job_.coordinator->OnClient(ClientId(2));
  ASSERT_THAT(job_.Got<JobState>(2), SizeIs(1));
  EXPECT_EQ(job_.Got<JobState>(2)[0].phase, JobPhase::kReady);
}

TEST_F(CoordinatorTest, AWorkerWithOtherSumsIsRefused) {
  job_.options.workers_expected = 2;
  job_.Create();
  job_.Join(1, ProcessRole::kStore);
  job_.Join(2, ProcessRole::kWorker);
  job_.Join(3, ProcessRole::kWorker);
  job_.Say(1, FakeJob::Segment());
  job_.Say(2, WorkerReady{.kernels = "avx2", .arithmetic = "16 lanes"});
  job_.Say(3, WorkerReady{.kernels = "amx", .arithmetic = "other"});
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_EQ(job_.coordinator->result()->code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("worker 3 "));
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("--kernels"));
}

// As above, but the job runs already: it goes on without the newcomer.
TEST_F(CoordinatorTest, AWorkerWithOtherSumsCannotJoinLater) {
  job_.Start();
  job_.Join(3, ProcessRole::kWorker);
  job_.Say(3, WorkerReady{.arithmetic = "16 lanes"});
  EXPECT_FALSE(job_.gone.contains(ProcessId(3)));
  job_.Join(4, ProcessRole::kWorker);
  job_.Say(4, WorkerReady{.kernels = "amx", .arithmetic = "other"});
  EXPECT_TRUE(job_.gone.contains(ProcessId(4)));
  EXPECT_FALSE(job_.coordinator->result());
}

TEST_F(CoordinatorTest, AStoreWithAnotherModelIsRefused) {
  job_.options.workers_expected = 2;
  job_.Create();
  job_.Join(1, ProcessRole::kStore);
  job_.Join(4, ProcessRole::kStore, 0, "b");
  job_.Say(1, FakeJob::Segment("one"));
  job_.Say(4, FakeJob::Segment("two"));
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("store 4"));
  EXPECT_THAT(job_.coordinator->result()->message(), HasSubstr("another model"));
}

TEST_F(CoordinatorTest, TheUseOfExpertsIsPassedOnAndMustAddUp) {
  job_.Start(2);
  ExpertReport report{.layers = {3},
                      .experts = {2},
                      .rows = {7, 8},
                      .places = {ExpertPlace::kResident, ExpertPlace::kAbsent}};
  job_.Say(2, report);
  job_.FromClient(1, ExpertsRequest{});
  const auto& reply = std::get<ExpertsReply>(job_.received[ClientId(1)].back());
  EXPECT_THAT(reply.json,
              HasSubstr(R"({"id":2,"layers":[{"layer":3,"rows":[7,8],"places":"r."}]})"));
  EXPECT_THAT(reply.json, HasSubstr(R"({"id":3,"layers":[]})"));
  report.experts = {9};
  job_.Say(3, report);
  job_.FromClient(1, StatusRequest{});
  EXPECT_THAT(std::get<StatusReply>(job_.received[ClientId(1)].back()).json,
              ::testing::Not(HasSubstr(R"("id": 3)")));
}

// --- requests ----------------------------------------------------------------------------------

TEST_F(CoordinatorTest, TheDeltasAreTheWholeText) {
  job_.Start();
  job_.Submit(5, "hello", 20);
  job_.RunAll({2});
  EXPECT_EQ(job_.Text(5),
            "the \xC3\xA9"
            "cho the \xC3\xA9"
            "cho ");
  EXPECT_EQ(job_.TokensOf(5), 20U);
  const RequestDone done = job_.Done(5);
  EXPECT_EQ(done.finish, FinishReason::kLength);
  EXPECT_EQ(done.generated_tokens, 20U);
  EXPECT_EQ(done.prompt_tokens, 4U);
  EXPECT_EQ(done.ttft_ns, 1'000'000);
  EXPECT_EQ(done.total_ns, 20'000'000);
}

TEST_F(CoordinatorTest, AStopStringEndsTheSequenceOnItsWorker) {
  job_.Start();
  job_.Submit(5, "hello", 30,
              {"\xA9"
               "c"});  // begins inside a character: never complete alone
  job_.Submit(6, "hello", 30, {"cho t"});
  job_.RunAll({2}, 12);
  EXPECT_EQ(job_.Text(6), "the \xC3\xA9");
  EXPECT_EQ(job_.Done(6).finish, FinishReason::kStop);
  EXPECT_THAT(job_.SentTo<CancelSequence>(2), SizeIs(2));
  EXPECT_EQ(job_.coordinator->placement().running(), 0U);
}

TEST_F(CoordinatorTest, ManyRequestsShareTheWorkersAndWaitInOrder) {
  job_.options.sequences_per_worker_max = 2;
  job_.Start(2);
  for (uint64_t i = 0; i < 6; ++i) job_.Submit(i, "x", 3);
  EXPECT_THAT(job_.running[ProcessId(2)], SizeIs(2));
  EXPECT_THAT(job_.running[ProcessId(3)], SizeIs(2));
  job_.RunAll({2, 3});
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(job_.Text(i), "the");
    EXPECT_EQ(job_.Done(i).finish, FinishReason::kLength);
  }
}

TEST_F(CoordinatorTest, BadRequestsAndAFullQueueAreRefused) {
  job_.options.sequences_per_worker_max = 1;
  job_.options.queued_requests_max = 1;
  job_.Start();
  SubmitRequest bad;
  bad.request = 1;
  bad.is_text = false;
  bad.tokens = {999};
  bad.max_new_tokens = 1;
  job_.FromClient(1, bad);
  EXPECT_EQ(job_.Done(1).finish, FinishReason::kError);
  EXPECT_EQ(job_.Done(1).code, static_cast<uint8_t>(StatusCode::kInvalidArgument));
  job_.Submit(2, std::string(100, 'x'), 1);
  EXPECT_THAT(job_.Done(2).message, HasSubstr("100 tokens"));
  job_.Submit(3, "x", 5);
  job_.Submit(4, "x", 5);
  job_.Submit(5, "x", 5);
  EXPECT_EQ(job_.Done(5).code, static_cast<uint8_t>(StatusCode::kResourceExhausted));
  job_.RunAll({2});
  EXPECT_EQ(job_.Done(3).finish, FinishReason::kLength);
  EXPECT_EQ(job_.Done(4).finish, FinishReason::kLength);
}

TEST_F(CoordinatorTest, ARequestNumberInUseIsRefusedAndTheFirstGoesOn) {
  job_.Start();
  job_.Submit(3, "x", 3);
  job_.Submit(3, "y", 3);
  EXPECT_THAT(job_.Done(3).message, HasSubstr("in use"));
  job_.RunAll({2});
  EXPECT_EQ(job_.Text(3), "the");
  EXPECT_THAT(job_.Got<RequestDone>(), SizeIs(2));
}

TEST_F(CoordinatorTest, CancellationGivesWhatWasHeldBackAndStopsTheWorker) {
  job_.Start();
  job_.Submit(3, "x", 30, {"he cat"});
  job_.Step(2);
  job_.Step(2);
  job_.Step(2);
  EXPECT_EQ(job_.Text(3), "t");
  job_.FromClient(1, CancelRequest{3});
  EXPECT_EQ(job_.Text(3), "the");
  EXPECT_EQ(job_.Done(3).finish, FinishReason::kCancelled);
  EXPECT_EQ(job_.Done(3).generated_tokens, 3U);
  EXPECT_THAT(job_.SentTo<CancelSequence>(2), SizeIs(1));
  job_.FromClient(1, CancelRequest{3});  // again: nothing
  EXPECT_THAT(job_.Got<RequestDone>(), SizeIs(1));
}

TEST_F(CoordinatorTest, ACancelledRequestThatWaitsNeverStarts) {
  job_.options.sequences_per_worker_max = 1;
  job_.Start();
  job_.Submit(1, "x", 3);
  job_.Submit(2, "x", 3);
  job_.FromClient(1, CancelRequest{2});
  EXPECT_EQ(job_.Done(2).finish, FinishReason::kCancelled);
  job_.RunAll({2});
  EXPECT_THAT(job_.SentTo<StartSequence>(2), SizeIs(1));
}

TEST_F(CoordinatorTest, TheSequencesOfAClientThatLeftAreCancelled) {
  job_.options.sequences_per_worker_max = 1;
  job_.Start();
  job_.coordinator->OnClient(ClientId(2));
  job_.Submit(1, "x", 30, {}, 2);
  job_.Submit(2, "x", 30, {}, 2);
  job_.Submit(1, "x", 3, {}, 1);
  job_.coordinator->OnClientGone(ClientId(2));
  EXPECT_THAT(job_.SentTo<CancelSequence>(2), SizeIs(1));
  job_.RunAll({2});
  EXPECT_EQ(job_.Text(1, 1), "the");
  EXPECT_THAT(job_.Got<RequestDone>(2), IsEmpty());
}

TEST_F(CoordinatorTest, ASlowClientDoesNotStopTheOthers) {
  job_.Start();
  job_.coordinator->OnClient(ClientId(2));
  job_.Submit(1, "x", 10, {}, 2);
  job_.Submit(1, "x", 10, {}, 1);
  job_.slow_clients.insert(ClientId(2));
  job_.Step(2);
  job_.coordinator->OnClientGone(ClientId(2));
  job_.RunAll({2});
  EXPECT_EQ(job_.TokensOf(1, 1), 10U);
}

TEST_F(CoordinatorTest, DuplicateReportsAreIgnoredAndAGapNamesTheWorker) {
  job_.Start();
  job_.Submit(1, "x", 30);
  const SequenceId sequence = job_.SentTo<StartSequence>(2)[0].sequence;
  job_.Say(2, StepReport{1, {{sequence, 1, 'a'}}});
  job_.Say(2, StepReport{1, {{sequence, 1, 'a'}}});
  EXPECT_EQ(job_.Text(1), "a");
  job_.Say(2, StepReport{3, {{sequence, 3, 'c'}}});
  const RequestDone done = job_.Done(1);
  EXPECT_EQ(done.finish, FinishReason::kError);
  EXPECT_EQ(done.code, static_cast<uint8_t>(StatusCode::kInternal));
  EXPECT_THAT(done.message, HasSubstr("worker 2 (pid 102 on a)"));
  EXPECT_THAT(job_.SentTo<CancelSequence>(2), SizeIs(1));
}

TEST_F(CoordinatorTest, ReportsOfAWorkerThatHasNotTheSequenceAreIgnored) {
  job_.Start(2);
  job_.Submit(1, "x", 30);
  const SequenceId sequence = job_.SentTo<StartSequence>(2)[0].sequence;
  job_.Say(3, StepReport{1, {{sequence, 1, 'z'}}});
  job_.Say(3, SequenceFailed{sequence, 1, "not mine"});
  job_.Say(3, CapturedPosition{sequence, 0});
  job_.Say(2, StepReport{1, {{SequenceId{77}, 1, 'z'}}});
  EXPECT_EQ(job_.Text(1), "");
  EXPECT_THAT(job_.Got<RequestDone>(), IsEmpty());
  EXPECT_THAT(job_.Got<RequestCapture>(), IsEmpty());
}

TEST_F(CoordinatorTest, SequencesGoWhereTheirBeginningIs) {
  job_.options.workers_expected = 2;
  job_.options.sequences_per_worker_max = 8;
  job_.Create();
  job_.coordinator->OnClient(ClientId(1));
  job_.Join(1, ProcessRole::kStore);
  for (const int32_t id : {2, 3}) job_.Join(id, ProcessRole::kWorker);
  job_.Say(1, FakeJob::Segment());
  for (const int32_t id : {2, 3}) {
    job_.Say(id, WorkerReady{.arithmetic = "16 lanes", .kv_tokens = 1600, .prefix_cache = true});
  }
  const std::string beginning = "a long system message, the same each time; ";
  job_.Submit(1, beginning + "a", 3);
  job_.Submit(2, beginning + "b", 3);
  job_.Submit(3, "something else, and longer than a block", 3);
  EXPECT_THAT(job_.SentTo<StartSequence>(2), SizeIs(2));
  EXPECT_THAT(job_.SentTo<StartSequence>(3), SizeIs(1));
  job_.RunAll({2, 3});
  // A conversation goes on where its answers were made.
  job_.Submit(4, "something else, and longer than a block" + job_.Text(3) + " and more", 3);
  EXPECT_THAT(job_.SentTo<StartSequence>(3), SizeIs(2));
}

TEST_F(CoordinatorTest, CachedTokensAreThoseOfTheFirstTimeAPromptWasDone) {
  job_.Start(2);
  job_.Submit(1, "twenty tokens, or so", 5);
  const StartSequence start = job_.SentTo<StartSequence>(2)[0];
  const SequenceId sequence = start.sequence;
  const uint32_t prompt = start.prompt_tokens;
  job_.Say(2, StepReport{1, {{sequence, prompt, 'a'}}, {{sequence, 16}}});
  job_.Say(3, StepReport{1, {}, {{sequence, 7}}});  // has it not
  job_.Die(2);
  job_.Say(3, StepReport{1, {{sequence, prompt + 1, 'b'}}, {{sequence, prompt - 1}}});
  job_.FromClient(1, CancelRequest{1});
  EXPECT_EQ(job_.Done(1).cached_tokens, 16U);
  EXPECT_EQ(job_.Done(1).prompt_tokens, prompt);
}

TEST_F(CoordinatorTest, APriorityIsWorthSomeSecondsOfWaiting) {
  job_.options.sequences_per_worker_max = 1;
  job_.Start();
  const auto submit = [this](uint64_t id, int32_t priority) {
    SubmitRequest request;
    request.request = id;
    request.text = "x";
    request.max_new_tokens = 1;
    request.priority = priority;
    job_.FromClient(1, request);
  };
  submit(1, 0);
  submit(2, 1);
  submit(3, 0);
  job_.Pass(kPriorityStepNs + kSecond);
  submit(4, 0);
  submit(5, -1);
  submit(6, -3);
  submit(7, 1001);
  EXPECT_THAT(job_.Done(7).message, HasSubstr("priority 1001"));
  job_.RunAll({2});
  std::vector<uint64_t> order;
  for (const RequestDone& done : job_.Got<RequestDone>()) order.push_back(done.request);
  EXPECT_THAT(order, ElementsAre(7, 1, 6, 3, 5, 2, 4));
}

TEST_F(CoordinatorTest, AFailedSequenceEndsItsRequestOnly) {
  job_.Start();
  job_.Submit(1, "x", 3);
  job_.Submit(2, "x", 3);
  const SequenceId sequence = job_.SentTo<StartSequence>(2)[0].sequence;
  job_.running[ProcessId(2)].erase(sequence);
  job_.Say(2, SequenceFailed{sequence, static_cast<uint8_t>(StatusCode::kResourceExhausted),
                             "KV cache"});
  EXPECT_EQ(job_.Done(1).code, static_cast<uint8_t>(StatusCode::kResourceExhausted));
  EXPECT_EQ(job_.Done(1).message, "KV cache");
  job_.RunAll({2});
  EXPECT_EQ(job_.Done(2).finish, FinishReason::kLength);
}

TEST_F(CoordinatorTest, TheVocabularyGoesBeforeTheFirstGrammarOfAWorker) {
  job_.Start();
  job_.Submit(1, "x", 2);
  EXPECT_THAT(job_.SentTo<TokenBytes>(2), SizeIs(0));
  for (const uint64_t id : {2, 3}) {
    SubmitRequest request;
    request.request = id;
    request.text = "x";
    request.max_new_tokens = 2;
    request.grammar = "g";
    job_.FromClient(1, request);
  }
  const auto tokens = job_.SentTo<TokenBytes>(2);
  ASSERT_THAT(tokens, SizeIs(1));
  EXPECT_EQ(tokens[0].sizes.size(), static_cast<size_t>(job_.model.vocab));
  EXPECT_EQ(tokens[0].bytes[tokens[0].sizes.size() > 'x' ? 'x' : 0], 'x');
  EXPECT_EQ(job_.SentTo<StartSequence>(2).back().grammar, "g");
}

TEST_F(CoordinatorTest, CapturesAreForwarded) {
  job_.Start();
  job_.Submit(8, "xy", 2);
  const SequenceId sequence = job_.SentTo<StartSequence>(2)[0].sequence;
  job_.Say(2, CapturedPosition{sequence, 1, {1.5F}, {3}, {1.0F}});
  job_.Say(2, CapturedPosition{sequence, 2, {2.5F}, {4}, {1.0F}});
  const auto captures = job_.Got<RequestCapture>();
  ASSERT_THAT(captures, SizeIs(2));
  EXPECT_EQ(captures[1].request, 8U);
  EXPECT_EQ(captures[1].captured.position, 2U);
  EXPECT_EQ(captures[1].captured.logits, std::vector<float>{2.5F});
}

// --- the end -----------------------------------------------------------------------------------

TEST_F(CoordinatorTest, ShutdownTellsEverybodyAndEndsTheRequests) {
  job_.Start(2);
  job_.Submit(1, "x", 30);
  job_.Step(2);
  job_.FromClient(1, ShutdownRequest{});
  ASSERT_TRUE(job_.coordinator->result());
  EXPECT_TRUE(job_.coordinator->result()->ok());
  EXPECT_EQ(job_.LastState().phase, JobPhase::kStopping);
  EXPECT_EQ(job_.Done(1).finish, FinishReason::kCancelled);
  for (const int32_t id : {1, 2, 3}) EXPECT_THAT(job_.SentTo<Shutdown>(id), SizeIs(1));
  job_.Submit(2, "x", 3);
  EXPECT_EQ(job_.Done(2).code, static_cast<uint8_t>(StatusCode::kUnavailable));
  job_.Die(2);
  EXPECT_TRUE(job_.coordinator->result()->ok());
}

TEST_F(CoordinatorTest, MessagesOfTheWrongRoleAreAProtocolError) {
  job_.Start(2);
  job_.Say(3, FakeJob::Segment());
  EXPECT_TRUE(job_.gone.contains(ProcessId(3)));
  job_.Say(1, WorkerReady{.arithmetic = "16 lanes"});
  EXPECT_TRUE(job_.gone.contains(ProcessId(1)));
  job_.FromClient(1, Heartbeat{});  // ignored
  EXPECT_FALSE(job_.coordinator->result());
}

}  // namespace
}  // namespace expertflow
