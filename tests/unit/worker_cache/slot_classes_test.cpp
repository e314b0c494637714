// Classes of slots by the sizes of blocks, and memory divided among them.
#include "worker/cache/slot_classes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace expertflow {
namespace {

constexpr uint64_t kPage = kSlotAlignment;

std::vector<uint64_t> Sizes(const std::vector<SlotClass>& classes) {
  std::vector<uint64_t> sizes;
  for (const SlotClass& c : classes) sizes.push_back(c.slot_bytes / kPage);
  return sizes;
}

TEST(SlotClasses, OneForEachSizeInWholePages) {
  const auto one = SlotClassesOf({{5000, 10}});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].slot_bytes, 2 * kPage);
  EXPECT_EQ(one[0].experts, 10);
  EXPECT_EQ(one[0].slots, 0);

  const auto two = SlotClassesOf({{11'520, 432}, {20'736, 144}});
  EXPECT_EQ(Sizes(two), (std::vector<uint64_t>{6, 3}));
  EXPECT_EQ(two[0].experts, 144);
  EXPECT_EQ(two[1].experts, 432);
  EXPECT_EQ(OneSlotOfEach(two), 9 * kPage);

  // Different blocks of as many pages.
  EXPECT_EQ(Sizes(SlotClassesOf({{4097, 1}, {8192, 2}})), (std::vector<uint64_t>{2}));
  EXPECT_EQ(Sizes(SlotClassesOf({})), (std::vector<uint64_t>{0}));
}

TEST(SlotClasses, SizesWithinASixteenthAreOne) {
  const auto classes = SlotClassesOf({{32 * kPage, 1}, {30 * kPage, 2}, {29 * kPage, 4}});
  EXPECT_EQ(Sizes(classes), (std::vector<uint64_t>{32, 29}));
  EXPECT_EQ(classes[0].experts, 3);
  EXPECT_EQ(classes[1].experts, 4);
}

TEST(SlotClasses, FourAtMostWithTheLeastWaste) {
  // Joining 30 to 40 wastes 10 pages, then both to 50 another 10 of each of 4 experts.
  const auto classes = SlotClassesOf({{10 * kPage, 9},
                                      {20 * kPage, 9},
                                      {30 * kPage, 1},
                                      {40 * kPage, 3},
                                      {50 * kPage, 9},
                                      {60 * kPage, 2}});
  EXPECT_EQ(Sizes(classes), (std::vector<uint64_t>{60, 50, 20, 10}));
  EXPECT_EQ(classes[0].experts, 2);
  EXPECT_EQ(classes[1].experts, 13);
}

TEST(SlotClasses, ABlockIsOfTheSmallestThatHoldIt) {
  const auto classes = SlotClassesOf({{10 * kPage, 1}, {20 * kPage, 1}, {30 * kPage, 1}});
  EXPECT_EQ(SlotClassOf(classes, 30 * kPage), 0u);
  EXPECT_EQ(SlotClassOf(classes, 20 * kPage + 1), 0u);
  EXPECT_EQ(SlotClassOf(classes, 20 * kPage), 1u);
  EXPECT_EQ(SlotClassOf(classes, 1), 2u);
  const std::vector<uint64_t> blocks = {20 * kPage, 1, 30 * kPage, 1};
  EXPECT_EQ(SlotClassesOfEach(classes, blocks), (std::vector<uint8_t>{1, 2, 0, 2}));
  EXPECT_EQ(CountBlocks(blocks),
            (std::map<uint64_t, int64_t>{{1, 2}, {20 * kPage, 1}, {30 * kPage, 1}}));
}

TEST(SlotClasses, MemoryGivesAllTheSameShare) {
  auto classes = SlotClassesOf({{kPage, 300}, {2 * kPage, 100}});
  DivideAmongClasses(50 * 5 * kPage, classes);  // half of 100 * 2 + 300 * 1 pages
  EXPECT_EQ(classes[0].slots, 50);
  EXPECT_EQ(classes[1].slots, 150);
  DivideAmongClasses(OneSlotOfEach(classes), classes);
  EXPECT_EQ(classes[0].slots, 1);
  EXPECT_EQ(classes[1].slots, 1);
  DivideAmongClasses(UINT64_MAX, classes);
  EXPECT_EQ(classes[0].slots, 100);
  EXPECT_EQ(classes[1].slots, 300);
}

TEST(SlotClasses, FIELD_46_CapacityIsHardAndNothingThatFitsIsLeft) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::map<uint64_t, int64_t> blocks;
    const auto sizes = 1 + random() % 6;
    while (blocks.size() < sizes) {
      blocks[1 + random() % (60 * kPage)] = static_cast<int64_t>(1 + random() % 50);
    }
    auto classes = SlotClassesOf(blocks);
    ASSERT_LE(classes.size(), kSlotClassesMax);
    int64_t experts = 0;
    for (const SlotClass& c : classes) experts += c.experts;
    for (const auto& [bytes, count] : blocks) {
      experts -= count;
      ASSERT_GE(classes[SlotClassOf(classes, bytes)].slot_bytes, bytes);
    }
    ASSERT_EQ(experts, 0);
    // Whole pages, or a byte less.
    const uint64_t budget = OneSlotOfEach(classes) + (1 + random() % 6000) * kPage - random() % 2;
    DivideAmongClasses(budget, classes);
    uint64_t taken = 0;
    for (const SlotClass& c : classes) {
      taken += static_cast<uint64_t>(c.slots) * c.slot_bytes;
      ASSERT_GE(c.slots, 1);
      ASSERT_LE(c.slots, c.experts);
    }
    ASSERT_LE(taken, budget) << "round " << round;
    for (const SlotClass& c : classes) {
      ASSERT_TRUE(c.slots == c.experts || budget - taken < c.slot_bytes) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace expertflow
