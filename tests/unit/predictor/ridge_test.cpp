// Ridge regression against the map that made the data.
#include "predictor/ridge.h"

#include <gtest/gtest.h>

#include <random>

namespace expertflow {
namespace {

// y = 2 x0 - x1 + 5, with inputs of very different sizes and offsets; y1 is always 3.
void AddRows(size_t count, RidgeSums* sums) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (size_t r = 0; r < count; ++r) {
    const float x[2] = {100 * normal(random) + 40, 0.01f * normal(random) - 0.02f};
    const float y[2] = {2 * x[0] - x[1] + 5, 3};
    sums->Add(x, y, 1);
  }
}

TEST(RidgeTest, FindsTheMapWhateverTheUnitsOfItsInputs) {
  RidgeSums sums(2, 2);
  AddRows(4'000, &sums);
  const auto map = sums.Solve(1e-4);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_NEAR(map->weight[0], 2, 1e-3);
  EXPECT_NEAR(map->weight[1], 0, 1e-4);
  EXPECT_NEAR(map->bias[0] + map->weight[0] * 40 + map->weight[2] * -0.02, 2 * 40 + 0.02 + 5, 0.02);
  EXPECT_NEAR(map->bias[1], 3, 1e-3);
}

TEST(RidgeTest, APenaltyOfAsManyRowsHalvesTheMap) {
  RidgeSums sums(2, 2);
  AddRows(4'000, &sums);
  const auto map = sums.Solve(4'000);
  ASSERT_TRUE(map.ok());
  EXPECT_NEAR(map->weight[0], 1, 0.05);
}

TEST(RidgeTest, SumsOfPartsAreTheSumsOfAll) {
  RidgeSums all(1, 1), first(1, 1), second(1, 1);
  for (int r = 0; r < 20; ++r) {
    const auto x = static_cast<float>(r * r % 7);
    const float y = 3 * x + 1;
    all.Add(&x, &y, 1);
    (r < 9 ? first : second).Add(&x, &y, 1);
  }
  first.Add(second);
  EXPECT_EQ(first.rows(), 20);
  EXPECT_EQ(first.Solve(1)->weight, all.Solve(1)->weight);
  EXPECT_FALSE(RidgeSums(1, 1).Solve(1).ok());
}

}  // namespace
}  // namespace expertflow
