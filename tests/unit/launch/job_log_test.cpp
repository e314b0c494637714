#include <gtest/gtest.h>

#include "launch/job.h"

namespace expertflow {
namespace {

TEST(ExplainLogTest, NoiseIsLeftOutAndTheLastLinesAreKept) {
  EXPECT_EQ(
      ExplainLog("one\n--------------\n\ntwo\n[h:1] PMIX ERROR: BAD-PARAM in file\nthree\n", 2),
      "\n  two\n  three");
}

TEST(ExplainLogTest, NothingToSay) {
  EXPECT_EQ(ExplainLog("", 5), "");
  EXPECT_EQ(ExplainLog("-----------\n", 5), "");
}

}  // namespace
}  // namespace expertflow
