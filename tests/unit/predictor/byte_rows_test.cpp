// Multiples of rows of bytes against the sums written out, whatever the columns.
#include "predictor/core/byte_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace expertflow {
namespace {

std::vector<float> Normal(size_t count, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(*random);
  return values;
}

TEST(ByteRowsTest, IsCloseToTheProductAndLeavesWhatIsBeforeTheBeginning) {
  std::mt19937 random(1);
  for (const ByteRowsShape& shape : {ByteRowsShape{2, 12, 2, 96}, ByteRowsShape{1, 128, 2, 70},
                                     ByteRowsShape{3, 5, 1, 33}, ByteRowsShape{1, 1, 1, 7}}) {
    std::vector<float> rows =
        Normal(shape.groups * shape.rows * shape.parts * shape.width, &random);
    for (size_t i = 0; i < shape.width; ++i) rows[i] = 0;  // the first row's first part
    const ByteRows bytes(rows, shape);
    for (size_t begin = 0; begin <= shape.width; begin += 5) {
      const size_t group = begin % shape.groups;
      const size_t part = begin % shape.parts;
      const std::vector<float> factors = Normal(shape.rows, &random);
      const std::vector<float> before = Normal(shape.width, &random);
      std::vector<float> found = before;
      bytes.AddTo(group, part, begin, factors, found.data());
      for (size_t c = 0; c < shape.width; ++c) {
        double expected = before[c];
        double sizes = 0;
        for (size_t r = 0; r < shape.rows && c >= begin; ++r) {
          const double product =
              factors[r] * rows[((group * shape.rows + r) * shape.parts + part) * shape.width + c];
          expected += product;
          sizes += std::abs(factors[r]);
        }
        // Bytes are within half of a 127th of the largest weight of their row, which is below 5.
        ASSERT_NEAR(found[c], expected, 0.02 * sizes + 1e-6) << "column " << c;
        if (c < begin) {
          ASSERT_EQ(found[c], before[c]);
        }
      }
    }
  }
}

TEST(ByteRowsTest, WhereItBeginsChangesNoSum) {
  std::mt19937 random(2);
  const ByteRowsShape shape = {1, 12, 1, 200};
  const ByteRows bytes(Normal(12 * 200, &random), shape);
  const std::vector<float> factors = Normal(12, &random);
  std::vector<float> whole(200);
  bytes.AddTo(0, 0, 0, factors, whole.data());
  for (size_t begin = 0; begin < 200; ++begin) {
    std::vector<float> found(200);
    bytes.AddTo(0, 0, begin, factors, found.data());
    for (size_t c = begin; c < 200; ++c) ASSERT_EQ(found[c], whole[c]) << begin << ", " << c;
  }
}

TEST(ByteRowsTest, WhatIsNoNumberAddsNothing) {
  std::mt19937 random(3);
  const ByteRows bytes(Normal(3 * 40, &random), {1, 3, 1, 40});
  std::vector<float> found(40, 2.0f);
  bytes.AddTo(0, 0, 0, std::vector<float>{1, std::numeric_limits<float>::quiet_NaN(), 1},
              found.data());
  bytes.AddTo(0, 0, 0, std::vector<float>{1, std::numeric_limits<float>::infinity(), 1},
              found.data());
  EXPECT_EQ(found, std::vector<float>(40, 2.0f));
}

}  // namespace
}  // namespace expertflow
