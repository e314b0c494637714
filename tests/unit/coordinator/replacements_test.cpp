#include "coordinator/replacements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReplacementsTest, TheFirstAtOnceTheOthersLaterThenNone) {
  Replacements replacements;
  int64_t now_ns = 5;
  for (const int64_t wait_ns : Replacements::kBackOffNs) {
    ASSERT_TRUE(replacements.Plan(ProcessRole::kWorker, now_ns));
    EXPECT_TRUE(replacements.Expects(ProcessRole::kWorker));
    EXPECT_FALSE(replacements.Expects(ProcessRole::kStore));
    if (wait_ns > 0) {
      EXPECT_THAT(replacements.TakeDue(now_ns + wait_ns - 1), IsEmpty());
    }
    now_ns += wait_ns;
    EXPECT_THAT(replacements.TakeDue(now_ns), ElementsAre(ProcessRole::kWorker));
    EXPECT_THAT(replacements.TakeDue(now_ns), IsEmpty());
  }
  EXPECT_FALSE(replacements.Plan(ProcessRole::kWorker, now_ns));
  EXPECT_EQ(replacements.Count(ProcessRole::kWorker), Replacements::kPerRoleMax);
  EXPECT_TRUE(replacements.Plan(ProcessRole::kStore, now_ns));
}

// However often: a job that has run for long gets over one death more.
TEST(ReplacementsTest, WhatWasLongAgoDoesNotCount) {
  Replacements replacements;
  constexpr int64_t kEachNs = 20'000'000'000;
  for (int64_t death = 0; death < 100; ++death) {
    ASSERT_TRUE(replacements.Plan(ProcessRole::kWorker, death * kEachNs)) << death;
    EXPECT_LE(replacements.Count(ProcessRole::kWorker), 2);
    EXPECT_THAT(replacements.TakeDue(death * kEachNs + Replacements::kBackOffNs[1]),
                ElementsAre(ProcessRole::kWorker));
  }
}

TEST(ReplacementsTest, OneThatJoinedIsNoLongerAReplacement) {
  Replacements replacements;
  replacements.Started(ProcessRole::kWorker, 41, 0);
  replacements.Started(ProcessRole::kStore, 42, 0);
  replacements.Joined(40);  // started by somebody else
  EXPECT_TRUE(replacements.Expects(ProcessRole::kWorker));
  replacements.Joined(41);
  EXPECT_FALSE(replacements.Expects(ProcessRole::kWorker));
  EXPECT_EQ(replacements.Ended(41), std::nullopt);
  EXPECT_EQ(replacements.Ended(42), ProcessRole::kStore);
  EXPECT_EQ(replacements.Ended(42), std::nullopt);
}

TEST(ReplacementsTest, OneThatDoesNotJoinIsOverdue) {
  Replacements replacements;
  replacements.Started(ProcessRole::kWorker, 41, 100);
  EXPECT_THAT(replacements.Overdue(110, 10), IsEmpty());
  EXPECT_THAT(replacements.Overdue(111, 10), ElementsAre(41));
}

}  // namespace
}  // namespace expertflow
