// The engine's life of sequences: what is refused, who waits for what, how they end.
#include "worker/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/worker/small_engine.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using testing::FaultDevice;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeEngine;
using testing::MakeFaultDevice;
using testing::Request;
using ::testing::SizeIs;
using testing::SmallEngineOptions;
using testing::SmallModel;

constexpr int32_t kNanToken = 63;

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new SmallModel(); }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  EngineTest() : device_(MakeFaultDevice()) {}

  void Make(const SmallEngineOptions& options) { Make(*model_, options); }
  void Make(const SmallModel& model, const SmallEngineOptions& options) {
    engine_ = MakeEngine(model, *device_, options);
  }
  void MustStart(const StartSequence& start) {
    const Status status = engine_->Start(start);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  Status StartOf(const StartSequence& start) { return engine_->Start(start); }
  StepOutput Step() {
    StepOutput output;
    const Status status = engine_->Step(&output);
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (const TokenEvent& event : output.tokens) {
      tokens_[event.sequence.value].push_back(event.token);
      finish_[event.sequence.value] = event.finish;
    }
    return output;
  }
  void RunToEnd() {
    for (int steps = 0; !engine_->idle(); ++steps) {
      ASSERT_LT(steps, 1000);
      EXPECT_THAT(Step().failed, IsEmpty());
    }
  }
  // Of a sequence that runs alone.
  static std::vector<int32_t> Generated(std::vector<int32_t> prompt, uint32_t count) {
    const auto device = MakeFaultDevice();
    const auto engine = MakeEngine(*model_, *device, {});
    EXPECT_TRUE(engine->Start(Request(1, std::move(prompt), count)).ok());
    std::vector<int32_t> tokens;
    while (!engine->idle()) {
      StepOutput output;
      EXPECT_TRUE(engine->Step(&output).ok());
      for (const TokenEvent& event : output.tokens) tokens.push_back(event.token);
    }
    return tokens;
  }

  static SmallModel* model_;
  std::unique_ptr<FaultDevice> device_;
  std::unique_ptr<Engine> engine_;
  std::map<uint64_t, std::vector<int32_t>> tokens_;
  std::map<uint64_t, FinishReason> finish_;
};
SmallModel* EngineTest::model_ = nullptr;

TEST_F(EngineTest, RefusesWhatIsNoSequence) {
  Make({});
  const auto refused = [this](const StartSequence& start) {
    const Status status = StartOf(start);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    return status.message();
  };
  EXPECT_THAT(refused(Request(1, {}, 4)), HasSubstr("needs a prompt"));
  EXPECT_THAT(refused(Request(1, {5}, 0)), HasSubstr("at least one token"));
  StartSequence start = Request(1, {5, 6}, 4);
  start.prompt_tokens = 0;
  EXPECT_THAT(refused(start), HasSubstr("needs a prompt"));
  start.prompt_tokens = 3;
  EXPECT_THAT(refused(start), HasSubstr("needs a prompt"));
  EXPECT_THAT(refused(Request(1, {5, 64}, 4)), HasSubstr("64 is outside the vocabulary of 64"));
  EXPECT_THAT(refused(Request(1, {-1}, 4)), HasSubstr("-1"));
  start = Request(1, {5}, 4);
  start.sampling.top_p = 2;
  EXPECT_THAT(refused(start), HasSubstr("top_p"));
  EXPECT_TRUE(engine_->idle());
}

// Penalties count tokens, not steps: a sequence that goes on elsewhere counts the same.
TEST_F(EngineTest, ARequeuedSequenceKeepsItsPenalties) {
  StartSequence start = Request(1, {5, 6, 7}, 30);
  start.sampling = {.temperature = 0.9f,
                    .seed = 3,
                    .min_p = 0.01f,
                    .repetition_penalty = 1.3f,
                    .frequency_penalty = 0.7f,
                    .presence_penalty = 0.4f,
                    .logit_bias = {{9, 2}}};
  Make({});
  MustStart(start);
  RunToEnd();
  const std::vector<int32_t> whole = tokens_[1];
  ASSERT_THAT(whole, SizeIs(30));
  for (const size_t done : {1, 11, 29}) {
    tokens_.clear();
    StartSequence rest = start;
    rest.tokens.insert(rest.tokens.end(), whole.begin(),
                       whole.begin() + static_cast<ptrdiff_t>(done));
    Make({});
    MustStart(rest);
    RunToEnd();
    EXPECT_EQ(tokens_[1],
              std::vector<int32_t>(whole.begin() + static_cast<ptrdiff_t>(done), whole.end()));
  }
  tokens_.clear();
  start.sampling = {.temperature = 0.9f, .seed = 3};
  MustStart(start);
  RunToEnd();
  EXPECT_NE(tokens_[1], whole);
}

// A vocabulary of which token t is the character 'A' + t, but for three tokens.
TokenBytes Letters() {
  TokenBytes tokens;
  for (int32_t id = 0; id < 64; ++id) {
    tokens.bytes += id == 7   ? std::string("[")
                    : id == 8 ? "]"
                    : id == 9 ? ","
                              : std::string(1, static_cast<char>('0' + id % 10));
    tokens.sizes.push_back(1);
  }
  return tokens;
}

TEST_F(EngineTest, AGrammarDecidesWhatMayComeAndWhereItEnds) {
  StartSequence start = Request(1, {5, 6, 7}, 30);
  start.sampling = {.temperature = 2, .seed = 3};
  start.stop_tokens = {60};
  start.grammar =
      R"({"alternatives":[{"schema":{"type":"array","items":{"enum":[1,2,55]},"minItems":3,"maxItems":5}}]})";
  Make({});
  EXPECT_EQ(StartOf(start).code(), StatusCode::kFailedPrecondition);  // no vocabulary
  ASSERT_TRUE(engine_->SetTokens(Letters()).ok());
  MustStart(start);
  RunToEnd();
  const std::vector<int32_t> whole = tokens_[1];
  EXPECT_EQ(finish_[1], FinishReason::kStop);
  std::string text;
  const TokenBytes letters = Letters();
  for (const int32_t token : whole)
    text += token == 60 ? '.' : letters.bytes[static_cast<size_t>(token)];
  EXPECT_THAT(text, ::testing::MatchesRegex("\\[[125,]+\\]\\.")) << text;

  // The same elsewhere, from any token on.
  for (size_t done = 1; done < whole.size(); ++done) {
    tokens_.clear();
    StartSequence rest = start;
    rest.tokens.insert(rest.tokens.end(), whole.begin(),
                       whole.begin() + static_cast<ptrdiff_t>(done));
    Make({});
    ASSERT_TRUE(engine_->SetTokens(Letters()).ok());
    MustStart(rest);
    RunToEnd();
    EXPECT_EQ(tokens_[1],
              std::vector<int32_t>(whole.begin() + static_cast<ptrdiff_t>(done), whole.end()));
  }

  StartSequence wrong = start;
  wrong.tokens.push_back(8);
  EXPECT_THAT(StartOf(wrong).message(), HasSubstr("not allowed by the grammar"));
  wrong = start;
  wrong.grammar = "nonsense";
  EXPECT_EQ(StartOf(wrong).code(), StatusCode::kInvalidArgument);

  // Nothing may come, not even the end: an error, not a token.
  start.stop_tokens.clear();
  MustStart(start);
  std::vector<SequenceFailed> failed;
  while (!engine_->idle()) {
    for (SequenceFailed& one : Step().failed) failed.push_back(std::move(one));
  }
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].message, HasSubstr("allows none"));
}

// A re-queued sequence that has nothing left to generate would need KV blocks that nobody reserved.
TEST_F(EngineTest, RefusesASequenceThatIsComplete) {
  Make({});
  StartSequence start = Request(1, std::vector<int32_t>(60, 5), 2);
  start.prompt_tokens = 1;
  EXPECT_EQ(StartOf(start).code(), StatusCode::kInvalidArgument);
  start.tokens.resize(3);
  EXPECT_EQ(StartOf(start).code(), StatusCode::kInvalidArgument);
  start.tokens.resize(2);
  MustStart(start);
  RunToEnd();
  EXPECT_THAT(tokens_[1], SizeIs(1));
  EXPECT_EQ(finish_[1], FinishReason::kLength);
}

TEST_F(EngineTest, RefusesAnIdThatIsInUse) {
  Make({.sequences_max = 1});
  MustStart(Request(1, {5}, 3));
  Step();
  MustStart(Request(2, {5}, 2));
  EXPECT_EQ(StartOf(Request(1, {6}, 2)).code(), StatusCode::kInvalidArgument);  // runs
  EXPECT_EQ(StartOf(Request(2, {6}, 2)).code(), StatusCode::kInvalidArgument);  // waits
  RunToEnd();
  EXPECT_THAT(tokens_[1], SizeIs(3));
  EXPECT_THAT(tokens_[2], SizeIs(2));
}

TEST_F(EngineTest, TooLongNamesBothNumbers) {
  Make({.kv_blocks = 2});
  const Status status = StartOf(Request(1, std::vector<int32_t>(20, 5), 14));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("20 prompt tokens and 14 new ones need 33 positions"));
  EXPECT_THAT(status.message(), HasSubstr("there are 32"));
  EXPECT_EQ(StartOf(Request(1, {5}, UINT32_MAX)).code(), StatusCode::kResourceExhausted);
  // The last token needs no place.
  MustStart(Request(2, std::vector<int32_t>(20, 5), 13));
  RunToEnd();
  EXPECT_THAT(tokens_[2], SizeIs(13));
}

TEST_F(EngineTest, LongerThanTheModelsContextIsRefused) {
  Make({.kv_blocks = 20});
  EXPECT_THAT(StartOf(Request(1, {5}, 257)).message(), HasSubstr("there are 256"));
  MustStart(Request(1, {5}, 256));
}

TEST_F(EngineTest, GeneratesExactlyTheTokensAskedFor) {
  for (const uint32_t count : {1u, 2u, 5u, 17u}) {
    Make({});
    MustStart(Request(count, {1, 2, 3}, count));
    uint32_t position = 3;
    while (!engine_->idle()) {
      const StepOutput output = Step();
      ASSERT_THAT(output.tokens, SizeIs(1));
      EXPECT_EQ(output.tokens[0].position, position++);
      EXPECT_EQ(output.tokens[0].finish,
                position == 3 + count ? FinishReason::kLength : FinishReason::kNone);
    }
    EXPECT_EQ(position, 3 + count);
    EXPECT_EQ(engine_->stats().kv_blocks_used, 0u);
  }
}

TEST_F(EngineTest, EndsAtAStopTokenAndReportsIt) {
  const auto free_run = Generated({7, 8}, 12);
  const int32_t stop = free_run[4];
  const auto first = std::find(free_run.begin(), free_run.end(), stop);
  StartSequence start = Request(1, {7, 8}, 12);
  start.stop_tokens = {kNanToken, stop};
  Make({});
  MustStart(start);
  RunToEnd();
  EXPECT_EQ(tokens_[1], std::vector<int32_t>(free_run.begin(), first + 1));
  EXPECT_EQ(finish_[1], FinishReason::kStop);
}

TEST_F(EngineTest, MoreSequencesThanPlacesWait) {
  Make({.sequences_max = 2});
  for (uint64_t id = 1; id <= 5; ++id) {
    MustStart(Request(id, {static_cast<int32_t>(id), 9}, 3 + static_cast<uint32_t>(id)));
  }
  EXPECT_EQ(engine_->stats().sequences, 5u);
  std::vector<uint64_t> finished;
  while (!engine_->idle()) {
    const StepOutput output = Step();
    EXPECT_LE(output.tokens.size(), 2u);
    for (const TokenEvent& event : output.tokens) {
      if (event.finish != FinishReason::kNone) finished.push_back(event.sequence.value);
    }
  }
  EXPECT_THAT(finished, ElementsAre(1, 2, 3, 4, 5));
  for (uint64_t id = 1; id <= 5; ++id) {
    EXPECT_EQ(tokens_[id], Generated({static_cast<int32_t>(id), 9}, 3 + static_cast<uint32_t>(id)));
  }
}

TEST_F(EngineTest, WhenTheKvCacheIsFullTheYoungestGivesItsBlocksBack) {
  for (const bool prefix_cache : {true, false}) {
    Make({.kv_blocks = 3, .prefix_cache = prefix_cache});
    tokens_.clear();
    MustStart(Request(1, {5}, 40));  // three blocks at its end
    MustStart(Request(2, {6}, 30));
    MustStart(Request(3, {7}, 20));
    EXPECT_THAT(Step().tokens, SizeIs(2));  // and a block for each to grow
    EXPECT_EQ(engine_->stats().kv_blocks_used, 2u);
    EXPECT_EQ(engine_->stats().kv_blocks_total, 3u);
    RunToEnd();
    EXPECT_GE(engine_->stats().preemptions, 1u);
    EXPECT_EQ(tokens_[1], Generated({5}, 40));
    EXPECT_EQ(tokens_[2], Generated({6}, 30));
    EXPECT_EQ(tokens_[3], Generated({7}, 20));
    EXPECT_EQ(engine_->stats().kv_blocks_used, 0u);
  }
}

// Sampling, a grammar and log probabilities go on where they were.
TEST_F(EngineTest, APreemptedSequenceLosesNothing) {
  StartSequence start = Request(2, {5, 6, 7}, 30);
  start.sampling = {.temperature = 1.5f, .seed = 3, .frequency_penalty = 0.3f};
  start.stop_tokens = {60};
  start.grammar =
      R"({"alternatives":[{"schema":{"type":"array","items":{"enum":[1,2,55]},"minItems":9,"maxItems":9}}]})";
  start.capture_logprobs = 2;
  const auto run = [&](bool crowded) {
    Make({.kv_blocks = 3});
    EXPECT_TRUE(engine_->SetTokens(Letters()).ok());
    tokens_.clear();
    if (crowded) MustStart(Request(1, {5}, 40));
    MustStart(start);
    std::vector<std::pair<uint32_t, float>> captured;
    while (!engine_->idle()) {
      for (const CapturedPosition& one : Step().captured) {
        captured.emplace_back(one.position, one.logprobs.at(0).logprob);
      }
    }
    EXPECT_EQ(engine_->stats().preemptions > 0, crowded);
    return captured;
  };
  const auto alone = run(false);
  const std::vector<int32_t> text = tokens_[2];
  ASSERT_THAT(alone, SizeIs(text.size() + 2));
  EXPECT_EQ(run(true), alone);
  EXPECT_EQ(tokens_[2], text);
}

// A crowd needs more KV blocks than there are: slots make room instead of anybody being preempted,
// and come back when it is gone. The text stays what it is alone.
TEST_F(EngineTest, TheKvCacheGrowsIntoSlotsAndGivesThemBack) {
  std::map<uint64_t, std::vector<int32_t>> alone;
  for (uint64_t id = 1; id <= 3; ++id) {
    alone[id] = Generated({static_cast<int32_t>(id), 5, 9}, 60);
  }
  for (const int64_t blocks_most : {0, 20}) {
    Make(
        {.in_place = false, .resident_percent = 75, .kv_blocks = 5, .kv_blocks_most = blocks_most});
    tokens_.clear();
    for (uint64_t id = 1; id <= 3; ++id) {
      MustStart(Request(id, {static_cast<int32_t>(id), 5, 9}, 60));
    }
    RunToEnd();
    EXPECT_EQ(tokens_, alone);
    EXPECT_EQ(engine_->stats().preemptions > 0, blocks_most == 0);
    EXPECT_EQ(engine_->stats().kv_blocks_total >= 12, blocks_most > 0);
  }
  // One that needs little, for long enough; the text is still right with the slots that came back.
  for (uint64_t id = 10; id < 70; ++id) {
    MustStart(Request(id, {1, 5, 9}, 60));
    RunToEnd();
    ASSERT_EQ(tokens_[id], alone[1]);
  }
  EXPECT_EQ(engine_->stats().kv_blocks_total, 5u);
}

// The second and third of each go on from what the first has computed, to the bit.
TEST_F(EngineTest, WhatBeginsAlikeIsComputedOnce) {
  std::vector<int32_t> prompt(45);
  std::iota(prompt.begin(), prompt.end(), 3);
  for (const bool in_place : {true, false}) {
    std::vector<std::vector<float>> logits;
    std::vector<uint32_t> cached;
    for (const bool prefix_cache : {false, true}) {
      Make({.in_place = in_place, .resident_percent = 50, .prefix_cache = prefix_cache});
      for (uint64_t id = 1; id <= 4; ++id) {
        StartSequence start = Request(id, prompt, 20);
        if (id == 3) start.tokens[37] = 1;  // inside the third block
        if (id == 4) start.tokens.resize(32), start.prompt_tokens = 32;
        start.capture_logits = true;
        start.capture_from = start.prompt_tokens - 1;
        MustStart(start);
        while (!engine_->idle()) {
          const StepOutput output = Step();
          for (const PromptDone& done : output.prompts) cached.push_back(done.cached_tokens);
          for (const CapturedPosition& one : output.captured) logits.push_back(one.logits);
        }
      }
      EXPECT_EQ(engine_->stats().reused_tokens, prefix_cache ? 44u + 37 + 31 : 0);
      EXPECT_EQ(engine_->stats().kv_blocks_used, 0u);
    }
    ASSERT_THAT(logits, SizeIs(2 * 4 * 20));
    for (size_t i = 0; i < logits.size() / 2; ++i) {
      ASSERT_EQ(logits[i], logits[i + logits.size() / 2]) << i;
    }
    EXPECT_THAT(cached, ElementsAre(0, 0, 0, 0, 0, 44, 37, 31));
  }
}

TEST_F(EngineTest, SequencesThatComeTogetherShareTheirPrompt) {
  std::vector<int32_t> prompt(40, 5);
  Make({.prefix_cache = true});
  std::map<uint64_t, uint32_t> cached;
  for (uint64_t id = 1; id <= 3; ++id) MustStart(Request(id, prompt, 6));
  while (!engine_->idle()) {
    for (const PromptDone& done : Step().prompts) cached[done.sequence.value] = done.cached_tokens;
  }
  EXPECT_EQ(cached, (std::map<uint64_t, uint32_t>{{1, 0}, {2, 32}, {3, 32}}));
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(tokens_[id], Generated(prompt, 6));
}

// A copy is data that a sequence goes on from: without it the sequence cannot.
TEST_F(EngineTest, AFailingCopyOfABlockFailsItsSequence) {
  std::vector<int32_t> prompt(16, 5);
  Make({});
  MustStart(Request(1, prompt, 2));
  RunToEnd();
  device_->FailCopies(1);
  MustStart(Request(2, prompt, 2));
  const StepOutput output = Step();
  ASSERT_THAT(output.failed, SizeIs(1));
  EXPECT_EQ(output.failed[0].sequence.value, 2u);
  device_->FailCopies(0);
  MustStart(Request(3, prompt, 2));
  RunToEnd();
  EXPECT_EQ(tokens_[3], tokens_[1]);
}

TEST_F(EngineTest, CancelsWaitingAndRunningSequences) {
  Make({.sequences_max = 1});
  for (uint64_t id = 1; id <= 3; ++id) MustStart(Request(id, {5}, 30));
  Step();
  engine_->Cancel({2});   // waits
  engine_->Cancel({1});   // runs
  engine_->Cancel({99});  // unknown
  EXPECT_EQ(engine_->stats().sequences, 1u);
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0u);
  RunToEnd();
  EXPECT_THAT(tokens_[1], SizeIs(1));
  EXPECT_THAT(tokens_[2], IsEmpty());
  EXPECT_THAT(tokens_[3], SizeIs(30));

  MustStart(Request(4, {5}, 30));
  Step();
  engine_->Cancel({4});
  EXPECT_TRUE(engine_->idle());
  EXPECT_EQ(engine_->stats().sequences, 0u);
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0u);
  EXPECT_THAT(Step().tokens, IsEmpty());
}

TEST_F(EngineTest, CountsPromptAndGeneratedTokens) {
  for (const int32_t chunk : {64, 13, 1}) {
    Make({.prefill_tokens = chunk});
    MustStart(Request(1, std::vector<int32_t>(14, 5), 6));
    MustStart(Request(2, {5}, 3));
    RunToEnd();
    EXPECT_EQ(engine_->stats().prefill_tokens, 15u) << chunk;
    EXPECT_EQ(engine_->stats().decode_tokens, 5u + 2) << chunk;
  }
}

TEST_F(EngineTest, LogprobsOfEachTokenWhereverItsSequenceGoesOn) {
  StartSequence start = Request(1, {1, 2, 3, 4, 5, 6}, 8);
  start.capture_logprobs = 3;
  std::map<uint32_t, CapturedPosition> captured;
  const auto run = [&](const StartSequence& sequence, const SmallEngineOptions& options) {
    captured.clear();
    tokens_.clear();
    Make(options);
    MustStart(sequence);
    while (!engine_->idle()) {
      for (CapturedPosition& one : Step().captured) {
        EXPECT_THAT(one.logits, IsEmpty());
        captured.emplace(one.position, std::move(one));
      }
    }
  };
  run(start, {.prefill_tokens = 4});
  const auto whole = captured;
  const std::vector<int32_t> generated = tokens_[1];
  std::vector<int32_t> tokens = start.tokens;
  tokens.insert(tokens.end(), generated.begin(), generated.end());
  ASSERT_THAT(whole, SizeIs(13));  // the last token has nothing behind it
  for (const auto& [position, one] : whole) {
    ASSERT_THAT(one.logprobs, SizeIs(4)) << position;
    EXPECT_EQ(one.logprobs[0].token, tokens[position + 1]) << position;
    EXPECT_LE(one.logprobs[0].logprob, one.logprobs[1].logprob);
    // Greedy: the likeliest is what was generated.
    if (position >= 5) {
      EXPECT_EQ(one.logprobs[1].token, tokens[position + 1]);
    }
  }
  // After a worker's death: from where the captures had come to.
  start.tokens.assign(tokens.begin(), tokens.begin() + 9);
  start.capture_from = 7;
  run(start, {.prefill_tokens = 2});
  ASSERT_THAT(captured, SizeIs(6));
  for (const auto& [position, one] : captured) {
    for (size_t i = 0; i < one.logprobs.size(); ++i) {
      EXPECT_EQ(one.logprobs[i].token, whole.at(position).logprobs[i].token);
      EXPECT_EQ(one.logprobs[i].logprob, whole.at(position).logprobs[i].logprob);
    }
  }
}

TEST_F(EngineTest, CapturesEveryPosition) {
  Make({.prefill_tokens = 4});
  StartSequence start = Request(1, {1, 2, 3, 4, 5, 6}, 3);
  start.capture_logits = true;
  start.capture_routes = true;
  MustStart(start);
  MustStart(Request(2, {9, 9}, 3));
  uint32_t position = 0;
  while (!engine_->idle()) {
    for (const CapturedPosition& captured : Step().captured) {
      EXPECT_EQ(captured.sequence.value, 1u);
      EXPECT_EQ(captured.position, position++);
      EXPECT_THAT(captured.logits, SizeIs(64));
      EXPECT_THAT(captured.router_ids, SizeIs(2 * 2));
      EXPECT_THAT(captured.router_weights, SizeIs(2 * 2));
    }
  }
  EXPECT_EQ(position, 6u + 2);
}

// One bad sequence must not take the others with it.
TEST_F(EngineTest, NanLogitsFailTheirSequenceOnly) {
  const SmallModel with_nan({.nan_token = kNanToken});
  Make(with_nan, {});
  MustStart(Request(1, {5, 6}, 4));
  MustStart(Request(2, {5, kNanToken}, 4));
  const StepOutput output = Step();
  ASSERT_THAT(output.failed, SizeIs(1));
  EXPECT_EQ(output.failed[0].sequence.value, 2u);
  EXPECT_EQ(output.failed[0].code, static_cast<uint8_t>(StatusCode::kInternal));
  EXPECT_THAT(output.failed[0].message, HasSubstr("logits are not numbers"));
  RunToEnd();
  EXPECT_EQ(tokens_[1], Generated({5, 6}, 4));
  EXPECT_THAT(tokens_[2], IsEmpty());
  // Its KV blocks are full of NaN; whoever gets them next must not see it.
  MustStart(Request(3, {5, 6}, 4));
  MustStart(Request(4, {7, 8}, 4));
  RunToEnd();
  EXPECT_EQ(tokens_[3], tokens_[1]);
  EXPECT_EQ(tokens_[4], Generated({7, 8}, 4));
  engine_.reset();  // before its model
}

TEST_F(EngineTest, AFailingCopyFailsTheSequencesOfItsStepOnly) {
  for (const double resident : {0.0, 50.0}) {
    tokens_.clear();
    device_->FailCopies(0);
    Make({.in_place = false, .resident_percent = resident, .sequences_max = 2});
    MustStart(Request(1, {5, 6}, 4));
    MustStart(Request(2, {15, 16}, 4));
    MustStart(Request(3, {25, 26}, 4));  // waits
    device_->FailCopies(1);
    const StepOutput output = Step();
    ASSERT_THAT(output.failed, SizeIs(2));
    EXPECT_EQ(output.failed[0].sequence.value, 1u);
    EXPECT_EQ(output.failed[1].sequence.value, 2u);
    EXPECT_THAT(output.failed[0].message, HasSubstr("injected failure"));
    EXPECT_THAT(output.tokens, IsEmpty());
    EXPECT_EQ(engine_->stats().kv_blocks_used, 0u);
    EXPECT_EQ(engine_->stats().sequences, 1u);
    device_->FailCopies(0);
    MustStart(Request(4, {5, 6}, 4));
    RunToEnd();
    EXPECT_EQ(tokens_[3], Generated({25, 26}, 4));
    EXPECT_EQ(tokens_[4], Generated({5, 6}, 4));
  }
}

TEST(EngineCreate, AModelWithoutExpertsRunsInPlaceAndPrivate) {
  const SmallModel dense({.dense_layers = "[0, 1]"});
  std::vector<std::vector<int32_t>> generated;
  for (const SmallEngineOptions& options :
       {SmallEngineOptions{}, {.in_place = false, .resident_percent = 100}}) {
    const auto device = MakeFaultDevice();
    const auto engine = MakeEngine(dense, *device, options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Start(Request(1, {5, 6}, 6)).ok());
    generated.emplace_back();
    while (!engine->idle()) {
      StepOutput output;
      ASSERT_TRUE(engine->Step(&output).ok());
      for (const TokenEvent& event : output.tokens) generated.back().push_back(event.token);
    }
  }
  EXPECT_THAT(generated[0], SizeIs(6));
  EXPECT_EQ(generated[0], generated[1]);
}

TEST(EngineCreate, NoMemoryNamesTheOption) {
  const SmallModel model;
  const auto device = MakeFaultDevice();
  EngineOptions options;
  options.plan = testing::PlanFor(model, {});
  options.plan.kv_bytes = uint64_t{1} << 60;
  const auto made = Engine::Create(options, *device, model.architecture(), model.store(), nullptr);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().message(), HasSubstr("--kv-memory"));
}

}  // namespace
}  // namespace expertflow
