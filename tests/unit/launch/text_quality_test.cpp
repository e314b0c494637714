#include "launch/text_quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace expertflow {
namespace {

TEST(KlDivergence, IsThatOfTheTwoSoftmaxes) {
  const std::vector<float> p = {std::log(3.0f), 0}, q = {0, 0};
  EXPECT_NEAR(KlDivergence(p, q), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(KlDivergence(q, p), 0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0), 1e-7);
  EXPECT_EQ(KlDivergence(p, p), 0);
}

TEST(KlDivergence, DoesNotDependOnAShiftOfTheLogits) {
  const std::vector<float> p = {1000, 998, 990}, q = {-1000, -1001, -1002};
  const std::vector<float> p0 = {10, 8, 0}, q0 = {2, 1, 0};
  EXPECT_NEAR(KlDivergence(p, q), KlDivergence(p0, q0), 1e-9);
  EXPECT_GT(KlDivergence(p, q), 0);
}

// Every token but the first is scored once, with at least length - step tokens before it.
TEST(TextWindows, ScoreEveryTokenOnce) {
  for (const size_t tokens : {2u, 7u, 8u, 9u, 40u}) {
    const auto windows = MakeWindows(tokens, 8, 4);
    size_t next = 1;
    for (const TextWindow& window : windows) {
      EXPECT_EQ(window.scored, next);
      EXPECT_TRUE(window.begin == 0 || window.scored - window.begin >= 4);
      next = window.end;
    }
    EXPECT_EQ(next, tokens);
  }
}

}  // namespace
}  // namespace expertflow
