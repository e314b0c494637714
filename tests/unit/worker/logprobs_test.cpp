#include "worker/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace expertflow {
namespace {

TEST(Logprobs, AreThoseOfTheSoftmaxLikeliestFirst) {
  // Logarithms of 2, 8, 4, 1, 1 sixteenths, and far from 0.
  std::vector<float> logits;
  for (const double weight : {2, 8, 4, 1, 1}) {
    logits.push_back(static_cast<float>(std::log(weight) + 500));
  }
  const auto found = LogprobsOf(logits, 3, 4);
  ASSERT_EQ(found.size(), 5U);
  const std::pair<int32_t, double> expected[] = {{3, 1}, {1, 8}, {2, 4}, {0, 2}, {3, 1}};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(found[i].token, expected[i].first) << i;
    EXPECT_NEAR(found[i].logprob, std::log(expected[i].second / 16), 1e-4) << i;
  }
  // Likelier ones that come late.
  const auto late = LogprobsOf(std::vector<float>{1, 9, 2, 3, 5, 4}, 0, 2);
  EXPECT_EQ(late[1].token, 1);
  EXPECT_EQ(late[2].token, 4);
  EXPECT_EQ(LogprobsOf(logits, 0, 0).size(), 1U);
  EXPECT_EQ(LogprobsOf(logits, 0, 99).size(), 6U);
}

TEST(Logprobs, OfTokensThatCannotBe) {
  const float never = -std::numeric_limits<float>::infinity();
  const auto found = LogprobsOf(std::vector<float>{never, 1, never}, 0, 1);
  EXPECT_EQ(found[0].logprob, never);
  EXPECT_EQ(found[1].token, 1);
  EXPECT_EQ(found[1].logprob, 0);
}

}  // namespace
}  // namespace expertflow
