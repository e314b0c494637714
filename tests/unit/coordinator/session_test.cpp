#include "coordinator/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/coordinator/fake_job.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- stop strings ------------------------------------------------------------------------------

TEST(StopFilterTest, HoldsBackWhatCouldBecomeAStopString) {
  StopFilter filter({"END"});
  EXPECT_EQ(filter.Push("abE"), "ab");
  EXPECT_EQ(filter.Push("N"), "");
  EXPECT_EQ(filter.Push("e"), "ENe");
  EXPECT_EQ(filter.Push("EN"), "");
  EXPECT_EQ(filter.Flush(), "EN");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilterTest, AStopStringAcrossPiecesNeverLeaks) {
  StopFilter filter({"\n\n", "END"});
  EXPECT_EQ(filter.Push("one\n"), "one");
  EXPECT_EQ(filter.Push("\ntwo"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.Push("more"), "");
  EXPECT_EQ(filter.Flush(), "");
}

TEST(StopFilterTest, TheOneThatIsCompleteFirstWins) {
  StopFilter filter({"cd", "bc", ""});
  EXPECT_EQ(filter.Push("abcd"), "a");
  EXPECT_TRUE(filter.stopped());
}

// Any cutting of a text into pieces shows the same, and no shown text could still become a stop.
TEST(StopFilterTest, TheCutDoesNotMatter) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>('a' + random() % 2);
    std::vector<std::string> stop;
    for (int i = 0; i < 2; ++i) {
      std::string one;
      for (uint32_t n = 3 + random() % 3; n > 0; --n) one += static_cast<char>('a' + random() % 2);
      stop.push_back(one);
    }
    // Where a whole-text search stops: the first position at which any stop string is complete.
    size_t end = text.size();
    bool stops = false;
    for (size_t n = 1; n <= text.size() && !stops; ++n) {
      for (const std::string& one : stop) {
        const size_t at = text.substr(0, n).find(one);
        if (at == std::string::npos) continue;
        end = stops ? std::min(end, at) : at;
        stops = true;
      }
    }
    StopFilter filter(stop);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t piece = 1 + random() % 4;
      shown += filter.Push(std::string_view(text).substr(at, piece));
      at += piece;
    }
    shown += filter.Flush();
    ASSERT_EQ(shown, text.substr(0, end)) << text << " " << stop[0] << " " << stop[1];
    ASSERT_EQ(filter.stopped(), stops);
  }
}

// --- sessions ----------------------------------------------------------------------------------

class SessionTest : public ::testing::Test {
 protected:
  Result<Session> Create(const SubmitRequest& request) {
    return Session::Create({9}, request, *model_.tokenizer, model_.vocab, model_.context,
                           model_.eos, 1000);
  }
  static SubmitRequest TextRequest(const std::string& text, uint32_t tokens = 10) {
    SubmitRequest request;
    request.request = 4;
    request.text = text;
    request.max_new_tokens = tokens;
    return request;
  }
  static SubmitRequest TokenRequest(std::vector<int32_t> tokens) {
    SubmitRequest request = TextRequest("");
    request.is_text = false;
    request.tokens = std::move(tokens);
    return request;
  }

  ServedModel model_ = testing::SmallServedModel();
};

TEST_F(SessionTest, TextIsTokenisedAndSentWithTheModelsStopTokens) {
  const auto session = Create(TextRequest("a the"));
  ASSERT_TRUE(session.ok());
  const StartSequence start = session->Start();
  EXPECT_EQ(start.sequence, SequenceId{9});
  EXPECT_THAT(start.tokens, ElementsAre('a', 258));
  EXPECT_EQ(start.prompt_tokens, 2U);
  EXPECT_EQ(start.max_new_tokens, 10U);
  EXPECT_THAT(start.stop_tokens, ElementsAre(300));
  SubmitRequest ignoring = TextRequest("a");
  ignoring.ignore_eos = true;
  EXPECT_THAT(Create(ignoring)->Start().stop_tokens, ElementsAre());
}

TEST_F(SessionTest, BadRequestsAreRefusedByName) {
  EXPECT_THAT(Create(TextRequest("")).status().message(), HasSubstr("empty"));
  EXPECT_THAT(Create(TextRequest("a", 0)).status().message(), HasSubstr("max_tokens"));
  EXPECT_THAT(Create(TokenRequest({5, 301})).status().message(), HasSubstr("301"));
  EXPECT_THAT(Create(TokenRequest({-1})).status().message(), HasSubstr("-1"));
  const Status too_long = Create(TextRequest(std::string(65, 'x'))).status();
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(too_long.message(), HasSubstr("65 tokens"));
  EXPECT_THAT(too_long.message(), HasSubstr("64"));
}

TEST_F(SessionTest, NewTokensAreClippedToTheContext) {
  EXPECT_EQ(Create(TextRequest(std::string(60, 'x'), 4))->Start().max_new_tokens, 4U);
  // The last token needs no position of its own.
  EXPECT_EQ(Create(TextRequest(std::string(60, 'x'), 4'000'000'000))->Start().max_new_tokens, 5U);
  EXPECT_EQ(Create(TextRequest(std::string(64, 'x'), 9))->Start().max_new_tokens, 1U);
}

TEST_F(SessionTest, KnownPositionsAreIgnoredAndAGapIsAnError) {
  auto session = Create(TextRequest("ab"));
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->OnToken({{9}, 2, 'x'}, 1500)->delta.text, "x");
  const auto again = session->OnToken({{9}, 2, 'y'}, 1600);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->delta.tokens.empty());
  const auto gap = session->OnToken({{9}, 4, 'z'}, 1700);
  ASSERT_FALSE(gap.ok());
  EXPECT_THAT(gap.status().message(), HasSubstr("position 4 came where 3 was due"));
  EXPECT_EQ(session->generated(), 1U);
}

TEST_F(SessionTest, AWorkerThatDoesNotStopIsStopped) {
  auto session = Create(TextRequest("ab", 2));
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->OnToken({{9}, 2, 'x'}, 1500)->finish, FinishReason::kNone);
  EXPECT_EQ(session->OnToken({{9}, 3, 'x'}, 1500)->finish, FinishReason::kLength);
}

TEST_F(SessionTest, TheEndOfAnUnfinishedCharacterIsShownAtTheEnd) {
  auto session = Create(TextRequest("ab", 2));
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->OnToken({{9}, 2, 'x'}, 1500)->delta.text, "x");
  EXPECT_EQ(session->OnToken({{9}, 3, 0xC3, FinishReason::kLength}, 1500)->delta.text,
            "\xEF\xBF\xBD");
}

TEST_F(SessionTest, CapturesAreDeliveredOnceAndInOrder) {
  SubmitRequest request = TextRequest("ab");
  request.capture_logits = true;
  auto session = Create(request);
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->Start().capture_from, 0U);
  EXPECT_TRUE(*session->OnCaptured(0));
  EXPECT_TRUE(*session->OnCaptured(1));
  EXPECT_FALSE(*session->OnCaptured(0));
  EXPECT_FALSE(session->OnCaptured(3).ok());
  EXPECT_TRUE(*session->OnCaptured(2));
  EXPECT_EQ(session->Start().capture_from, 3U);  // elsewhere only what is new
}

TEST_F(SessionTest, LogprobsBeginWithTheFirstGeneratedTokenOrThePrompt) {
  SubmitRequest request = TextRequest("abc");
  request.logprobs = 2;
  const auto session = Create(request);
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->Start().capture_logprobs, 2);
  EXPECT_EQ(session->Start().capture_from, 2U);  // the logits behind the last prompt token
  request.prompt_logprobs = true;
  EXPECT_EQ(Create(request)->Start().capture_from, 0U);
}

TEST_F(SessionTest, TimesAreFromSubmission) {
  auto session = Create(TextRequest("ab"));
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(session->OnToken({{9}, 2, 'x'}, 1500).ok());
  ASSERT_TRUE(session->OnToken({{9}, 3, 'x'}, 1900).ok());
  session->OnRequeued();
  const RequestDone done = session->Done(FinishReason::kStop, OkStatus(), 5000);
  EXPECT_EQ(done.ttft_ns, 500);
  EXPECT_EQ(done.total_ns, 900);
  EXPECT_EQ(done.prompt_tokens, 2U);
  EXPECT_EQ(done.generated_tokens, 2U);
  EXPECT_EQ(done.requeues, 1U);
}

TEST(ErrorCodeFromTest, UnknownCodesAndOkAreInternal) {
  EXPECT_EQ(ErrorCodeFrom(static_cast<uint8_t>(StatusCode::kNotFound)), StatusCode::kNotFound);
  EXPECT_EQ(ErrorCodeFrom(0), StatusCode::kInternal);
  EXPECT_EQ(ErrorCodeFrom(255), StatusCode::kInternal);
}

}  // namespace
}  // namespace expertflow
