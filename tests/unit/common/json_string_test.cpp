#include "common/json_string.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

TEST(JsonQuoted, EscapesWhatMustBeAndLeavesTheRest) {
  EXPECT_EQ(JsonQuoted(""), "\"\"");
  EXPECT_EQ(JsonQuoted("a \"b\" \\c/"), R"("a \"b\" \\c/")");
  EXPECT_EQ(JsonQuoted("\n\r\t\b\f"), R"("\n\r\t\b\f")");
  EXPECT_EQ(JsonQuoted(std::string_view("\0\x01\x1f\x7f", 4)), "\"\\u0000\\u0001\\u001f\x7f\"");
  EXPECT_EQ(JsonQuoted("h\u00e9 \U0001f600"), "\"h\u00e9 \U0001f600\"");
}

}  // namespace
}  // namespace expertflow
