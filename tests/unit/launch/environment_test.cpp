// FIELD row 45: what is set and has no effect is said.
#include "launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace expertflow {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(EnvironmentTest, FIELD_45_MisspeltVariablesAreNamedWithWhatIsMeant) {
  EXPECT_THAT(
      IgnoredVariables({"EXPERTFLOW_WROKERS", "EXPERTFLOW_ZEBRA_CROSSING"}),
      ElementsAre(
          AllOf(HasSubstr("EXPERTFLOW_WROKERS is ignored"), HasSubstr("(EXPERTFLOW_WORKERS?)")),
          AllOf(HasSubstr("EXPERTFLOW_ZEBRA_CROSSING is ignored"), Not(HasSubstr("?")))));
}

TEST(EnvironmentTest, OptionsOfTheCommandLineOnlyAreNamed) {
  EXPECT_THAT(IgnoredVariables({"EXPERTFLOW_PROMPT"}),
              ElementsAre(AllOf(HasSubstr("EXPERTFLOW_PROMPT"), HasSubstr("command line only"))));
}

TEST(EnvironmentTest, WhatIsReadIsNotNamed) {
  EXPECT_THAT(IgnoredVariables({"EXPERTFLOW_WORKERS", "EXPERTFLOW_CONFIG", "EXPERTFLOW_ROOT",
                                "EXPERTFLOW_JOIN_SECRET", "EXPERTFLOW_EXPERT_MEMORY"}),
              IsEmpty());
}

TEST(EnvironmentTest, EmptyVariablesAndThoseOfOthersAreNotOurs) {
  ::setenv("EXPERTFLOW_TEST_FULL", "1", 1);
  ::setenv("EXPERTFLOW_TEST_EMPTY", "", 1);
  ::setenv("OTHER_EXPERTFLOW_TEST", "1", 1);
  const std::vector<std::string> own = OwnVariables();
  EXPECT_THAT(own, Contains("EXPERTFLOW_TEST_FULL"));
  EXPECT_THAT(own, Not(Contains("EXPERTFLOW_TEST_EMPTY")));
  EXPECT_THAT(own, Not(Contains("OTHER_EXPERTFLOW_TEST")));
  ::unsetenv("EXPERTFLOW_TEST_FULL");
  ::unsetenv("EXPERTFLOW_TEST_EMPTY");
  ::unsetenv("OTHER_EXPERTFLOW_TEST");
}

}  // namespace
}  // namespace expertflow
