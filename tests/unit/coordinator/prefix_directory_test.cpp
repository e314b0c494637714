#include "coordinator/policy/prefix_directory.h"

#include <gtest/gtest.h>

#include <vector>

namespace expertflow {
namespace {

using Blocks = std::vector<uint64_t>;

TEST(PrefixDirectoryTest, CountsTheFirstBlocksThatAreThere) {
  PrefixDirectory directory(10);
  EXPECT_EQ(directory.CountKnown(Blocks{1}), 0U);
  directory.Add(Blocks{1, 2, 3});
  EXPECT_EQ(directory.CountKnown(Blocks{1, 2, 4}), 2U);
  EXPECT_EQ(directory.CountKnown(Blocks{2, 3}), 2U);
  EXPECT_EQ(directory.CountKnown(Blocks{9, 1, 2}), 0U);
  EXPECT_EQ(directory.CountKnown({}), 0U);
}

TEST(PrefixDirectoryTest, ForgetsTheOldestAndEndsBeforeBeginnings) {
  PrefixDirectory directory(4);
  directory.Add(Blocks{1, 2, 3});
  directory.Add(Blocks{4, 5});
  EXPECT_EQ(directory.size(), 4U);
  EXPECT_EQ(directory.CountKnown(Blocks{1, 2, 3}), 2U);
  directory.Add(Blocks{1, 2});  // used again
  directory.Add(Blocks{6});
  EXPECT_EQ(directory.CountKnown(Blocks{4, 5}), 1U);
  EXPECT_EQ(directory.CountKnown(Blocks{1, 2}), 2U);
  directory.Add(Blocks{11, 12, 13, 14, 15, 16});
  EXPECT_EQ(directory.size(), 4U);
  EXPECT_EQ(directory.CountKnown(Blocks{11, 12, 13, 14, 15}), 4U);
}

TEST(PrefixDirectoryTest, KeepsNothingWithoutRoom) {
  PrefixDirectory directory(0);
  directory.Add(Blocks{1, 2});
  EXPECT_EQ(directory.CountKnown(Blocks{1}), 0U);
}

}  // namespace
}  // namespace expertflow
