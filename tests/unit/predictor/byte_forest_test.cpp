// The forest as bytes against its plain form: equal to the bit.
#include "predictor/core/byte_forest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace expertflow {
namespace {

using ::testing::ElementsAreArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
  int32_t trees = 0;
  int32_t depth = 0;
  int32_t features = 0;
  int32_t thresholds = 0;  // distinct ones of a feature
};

float Threshold(int32_t number) {
  if (number == 0) return -kInfinity;
  if (number == 1) return kInfinity;
  return static_cast<float>(number % 2 == 0 ? -number : number) / 7;
}

RandomForest Random(const Shape& shape, std::mt19937* random) {
  std::uniform_int_distribution<int32_t> feature(0, shape.features - 1);
  std::uniform_int_distribution<int32_t> threshold(0, shape.thresholds - 1);
  std::normal_distribution<float> leaf;
  RandomForest forest = {.trees = shape.trees, .depth = shape.depth, .features = shape.features};
  const size_t trees = static_cast<size_t>(shape.trees);
  for (size_t i = 0; i < trees * forest.nodes(); ++i) {
    forest.feature.push_back(static_cast<uint8_t>(feature(*random)));
    forest.threshold.push_back(Threshold(threshold(*random)));
  }
  for (size_t i = 0; i < trees * forest.leaves(); ++i) forest.leaf.push_back(leaf(*random));
  EXPECT_TRUE(CheckRandomForest(forest).ok());
  return forest;
}

// Thresholds, what lies between them, and what is no number.
float Value(int32_t thresholds, std::mt19937* random) {
  const float near = Threshold(std::uniform_int_distribution<int32_t>(0, thresholds)(*random));
  switch (std::uniform_int_distribution<int>(0, 9)(*random)) {
    case 0: return std::numeric_limits<float>::quiet_NaN();
    case 1: return -0.0f;
    case 2:
    case 3:
    case 4: return near;
    default: return near + 0.01f;
  }
}

TEST(ByteForestTest, EvaluatesAsThePlainForm) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2: the plain form is used";
  std::mt19937 random(1);
  for (const Shape& shape : {Shape{3, 4, 1, 2}, Shape{5, 5, 20, 30}, Shape{4, 6, 64, 255},
                             Shape{32, 7, 17, 200}, Shape{32, 8, 20, 255}, Shape{1, 8, 3, 5}}) {
    const RandomForest forest = Random(shape, &random);
    const ByteForest bytes(forest);
    const ByteForest without_avx512(forest, false);
    ASSERT_TRUE(bytes.fits() && without_avx512.fits());
    for (const size_t rows : {1, 7, 8, 31, 32, 33, 100}) {
      const auto stride = static_cast<size_t>(shape.features) + 2;
      std::vector<float> values(rows * stride);
      for (float& value : values) value = Value(shape.thresholds, &random);
      // A feature that is the same for several rows.
      for (size_t r = 1; r < rows; ++r) values[r * stride] = values[r % 5 * stride];
      std::vector<const float*> of_row;
      for (size_t r = 0; r < rows; ++r) of_row.push_back(values.data() + r * stride);
      std::vector<float> plain(rows);
      std::vector<float> found(rows);
      EvaluateForest(forest, values.data(), stride, plain);
      bytes.Evaluate(forest.leaf, of_row, found);
      EXPECT_THAT(found, ElementsAreArray(plain)) << "depth " << shape.depth << ", rows " << rows;
      without_avx512.Evaluate(forest.leaf, of_row, found);
      EXPECT_THAT(found, ElementsAreArray(plain)) << "AVX2, depth " << shape.depth;
    }
  }
}

TEST(ByteForestTest, WhatBytesCannotTellIsLeftToThePlainForm) {
  std::mt19937 random(2);
  EXPECT_FALSE(ByteForest(RandomForest{}).fits());
  EXPECT_FALSE(ByteForest(Random({2, 3, 4, 9}, &random)).fits());    // too shallow
  EXPECT_FALSE(ByteForest(Random({2, 9, 4, 9}, &random)).fits());    // more leaves than bytes
  EXPECT_FALSE(ByteForest(Random({9, 8, 1, 900}, &random)).fits());  // or thresholds
}

}  // namespace
}  // namespace expertflow
