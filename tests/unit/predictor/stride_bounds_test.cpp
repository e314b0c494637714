#include "predictor/core/stride_bounds.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

TEST(StrideBoundsTest, TextsAreReadAndWritten) {
  EXPECT_EQ(ParseStride("auto"), (StrideBounds{1, kStrideMost}));
  EXPECT_EQ(ParseStride("3"), (StrideBounds{3, 3}));
  EXPECT_EQ(ParseStride("4-6"), (StrideBounds{4, 6}));
  EXPECT_TRUE(ParseStride("8")->fixed());
  EXPECT_FALSE(ParseStride("1-2")->fixed());
  for (const char* text : {"auto", "1", "8", "2-3", "4-6"}) {
    ASSERT_TRUE(ParseStride(text).has_value()) << text;
    EXPECT_EQ(FormatStride(*ParseStride(text)), text);
  }
}

TEST(StrideBoundsTest, OthersAreNot) {
  for (const char* text : {"", "0", "9", "-1", "1-", "-", "3-2", "0-3", "4-9", "2-3-4", "3 ", "x",
                           "AUTO", "+3", "99999999999"}) {
    EXPECT_FALSE(ParseStride(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace expertflow
