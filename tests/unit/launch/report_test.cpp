#include "launch/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/status_text.h"

namespace expertflow {
namespace {

using testing::HasSubstr;

TEST(FiguresTest, WorkersAreAddedUp) {
  const JobFigures figures = FiguresOf(R"({"workers": [
      {"device": "cpu", "kernels": "avx2", "threads": 2, "in_place": false,
       "stats": {"hits": 10, "misses": 3, "stall_ns": 7, "link_bytes_per_second": 4000000000,
                 "link_emulated": true}},
      {"device": "cpu", "kernels": "avx2", "threads": 2, "in_place": false,
       "stats": {"hits": 5, "late_hits": 1, "link_bytes_per_second": 4000000000}}]})");
  EXPECT_EQ(figures.workers, 2);
  EXPECT_EQ(figures.kernels, "avx2");
  EXPECT_EQ(figures.hits, 15U);
  EXPECT_EQ(figures.late_hits, 1U);
  EXPECT_EQ(figures.misses, 3U);
  EXPECT_EQ(figures.stall_ns, 7U);
  EXPECT_EQ(figures.link_bytes_per_second, 4'000'000'000U);
  EXPECT_TRUE(figures.link_emulated);
}

TEST(FiguresTest, NonsenseGivesZeros) {
  for (const char* text :
       {"", "{", "[]", R"({"workers": 3})", R"({"workers": [1, {"stats": 2}]})"}) {
    EXPECT_EQ(FiguresOf(text).hits, 0U) << text;
  }
}

TEST(GenerationTest, TpotIsTheMeanOverAllButTheFirstToken) {
  RequestOutcome outcome;
  outcome.done = {.generated_tokens = 5, .ttft_ns = 100, .total_ns = 500};
  EXPECT_EQ(outcome.TpotNs(), 100);
  outcome.done.generated_tokens = 1;
  EXPECT_EQ(outcome.TpotNs(), 0);
}

TEST(GenerationTest, TheFirstFailureNamesThePrompt) {
  Generation generation;
  generation.requests.resize(2);
  generation.requests[1].finished = true;
  generation.requests[1].done.finish = FinishReason::kError;
  generation.requests[1].done.code = static_cast<uint8_t>(StatusCode::kResourceExhausted);
  generation.requests[1].done.message = "no room";
  EXPECT_EQ(generation.FirstFailure().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(generation.FirstFailure().message(), "prompt 2: no room");
}

TEST(StatusTextTest, RequestedValuesAreShownWithTheirSource) {
  const std::string text = DescribeStatus(
      R"({"job": "x", "requested": {"workers": {"value": "2", "source": "environment"},
          "threads": {"value": "0", "source": "default"}}})");
  EXPECT_THAT(text, HasSubstr("workers = 2 (environment)"));
  EXPECT_THAT(text, HasSubstr("threads = 0 (default)"));
}

}  // namespace
}  // namespace expertflow
