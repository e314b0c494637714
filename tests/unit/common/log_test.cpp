#include "common/log.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

TEST(Log, TheLatestLinesAreKeptWhetherPrintedOrNot) {
  LogInfo("before");
  EXPECT_TRUE(KeptLog().empty());
  KeepLog(2);
  LogDebug("never");
  LogWarning("one");
  LogInfo("two");
  LogError("three {}", 3);
  const std::vector<KeptLogLine> lines = KeptLog();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].text, "two");
  EXPECT_EQ(lines[0].level, LogLevel::kInfo);
  EXPECT_EQ(lines[1].text, "three 3");
  EXPECT_EQ(LogLevelName(lines[1].level), "error");
  EXPECT_GT(lines[0].time_ms, 1'600'000'000'000);
  KeepLog(0);
}

}  // namespace
}  // namespace expertflow
