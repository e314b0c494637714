#include "sim/memory_layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/synthetic_routing.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

constexpr MemoryLayout kLayouts[] = {MemoryLayout::kContiguous, MemoryLayout::kBlocks,
                                     MemoryLayout::kSizedBlocks};

// One layer of `experts`, top-1; each row uses what `rows` says.
RoutingTrace OneLayer(int32_t experts, std::vector<uint16_t> rows) {
  RoutingTrace trace;
  trace.experts = {experts};
  trace.top_k = 1;
  trace.weights.assign(rows.size(), 1.0F);
  trace.sequences = {{0, rows.size()}};
  trace.chosen = std::move(rows);
  return trace;
}

LayoutResult SimulateOrFail(const LayoutWorkload& workload, MemoryLayout layout) {
  const auto result = SimulateLayout(workload, layout);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? *result : LayoutResult{};
}

// Sequences of different lengths, experts of two sizes, more of both than fits.
struct Crowd {
  explicit Crowd(uint64_t small_bytes, uint64_t large_bytes) {
    SyntheticRouting routing;
    routing.experts.assign(4, 16);
    routing.top_k = 2;
    routing.sequences = 8;
    routing.tokens = 100;
    trace = SynthesizeRouting(routing);
    workload.trace = &trace;
    for (int32_t i = 0; i < 64; ++i) {
      workload.expert_bytes.push_back(i % 4 == 0 ? large_bytes : small_bytes);
    }
    for (int32_t i = 0; i < 40; ++i) {
      workload.requests.push_back(
          {.step = i * 7, .prompt_tokens = 20 + i * 13 % 90, .new_tokens = 30 + i * 29 % 120});
    }
    workload.kv_token_bytes = 100;
    workload.sequences_max = 6;
    workload.memory_bytes = 120'000;
  }
  RoutingTrace trace;
  LayoutWorkload workload;
};

TEST(MemoryLayoutsTest, BytesAddUpWorkedOutByHand) {
  // Experts of 30 bytes, 4 tokens of 10 bytes each, blocks of 2 tokens; 100 bytes.
  const RoutingTrace trace = OneLayer(3, {0, 1, 2});
  LayoutWorkload workload;
  workload.trace = &trace;
  workload.expert_bytes = {30, 30, 30};
  workload.requests = {{.step = 5, .prompt_tokens = 1, .new_tokens = 3}};
  workload.kv_token_bytes = 10;
  workload.kv_block_tokens = 2;
  workload.memory_bytes = 100;
  // The heap keeps 40 bytes for the sequence: two experts beside it, one of them leaves for the
  // third. Used: 2 tokens and 1 expert, 3 and 2, 4 and 2.
  const LayoutResult heap = SimulateOrFail(workload, MemoryLayout::kContiguous);
  EXPECT_EQ(heap.steps, 3);
  EXPECT_EQ(heap.misses, 3U);
  EXPECT_EQ(heap.bytes_loaded, 90U);
  EXPECT_DOUBLE_EQ(heap.unused, (0.50 + 0.10 + 0.0) / 3);
  EXPECT_DOUBLE_EQ(heap.experts, 5.0 / 3);
  // Blocks: 20 bytes for two tokens, then 40: two slots all the time.
  const LayoutResult blocks = SimulateOrFail(workload, MemoryLayout::kBlocks);
  EXPECT_DOUBLE_EQ(blocks.unused, (0.50 + 0.10 + 0.0) / 3);
  EXPECT_EQ(blocks.misses, 3U);
}

TEST(MemoryLayoutsTest, AHeapKeepsMemoryForTokensThatAreYetToCome) {
  // 20 tokens to come of 10 bytes: 200 of 300 bytes. Two of four experts would fit in the first
  // steps, were it not for them.
  const RoutingTrace trace = OneLayer(4, {0, 1, 2, 3});
  LayoutWorkload workload;
  workload.trace = &trace;
  workload.expert_bytes = {50, 50, 50, 50};
  workload.requests = {{.prompt_tokens = 1, .new_tokens = 20}};
  workload.kv_token_bytes = 10;
  workload.kv_block_tokens = 1;
  workload.memory_bytes = 300;
  const LayoutResult heap = SimulateOrFail(workload, MemoryLayout::kContiguous);
  EXPECT_EQ(heap.misses, heap.uses);  // round and round, one slot
  const LayoutResult blocks = SimulateOrFail(workload, MemoryLayout::kBlocks);
  EXPECT_LT(blocks.misses, blocks.uses);
  EXPECT_LT(blocks.unused, heap.unused);
}

TEST(MemoryLayoutsTest, SlotsOfSeveralSizesHoldMoreExpertsThanSlotsOfTheLargest) {
  const Crowd crowd(1000, 1800);
  const LayoutResult blocks = SimulateOrFail(crowd.workload, MemoryLayout::kBlocks);
  const LayoutResult sized = SimulateOrFail(crowd.workload, MemoryLayout::kSizedBlocks);
  EXPECT_GT(sized.experts, blocks.experts);
  EXPECT_LT(sized.unused, blocks.unused);
}

// Of 110 bytes the same share of 4 experts of 20 bytes and 8 of 10 is 3 and 5 slots, as in a
// worker; one of the small slots is the sequence's.
TEST(MemoryLayoutsTest, SlotsOfSeveralSizesAreDividedAsAWorkerDividesThem) {
  const RoutingTrace trace = OneLayer(12, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  LayoutWorkload workload;
  workload.trace = &trace;
  workload.expert_bytes = {20, 20, 20, 20, 10, 10, 10, 10, 10, 10, 10, 10};
  workload.requests = {{.prompt_tokens = 1, .new_tokens = 9}};
  workload.kv_token_bytes = 1;
  workload.kv_block_tokens = 1;
  workload.memory_bytes = 110;
  const LayoutResult sized = SimulateOrFail(workload, MemoryLayout::kSizedBlocks);
  EXPECT_EQ(sized.steps, 9);
  EXPECT_DOUBLE_EQ(sized.experts, (1 + 2 + 3 + 3 + 4 + 5 + 6 + 7 + 7) / 9.0);
  workload.memory_bytes = 29;
  EXPECT_THAT(SimulateLayout(workload, MemoryLayout::kSizedBlocks).status().message(),
              HasSubstr("a slot of each size"));
}

TEST(MemoryLayoutsTest, OneSizeIsOneLayoutOfBlocks) {
  const Crowd crowd(1500, 1500);
  const LayoutResult blocks = SimulateOrFail(crowd.workload, MemoryLayout::kBlocks);
  const LayoutResult sized = SimulateOrFail(crowd.workload, MemoryLayout::kSizedBlocks);
  EXPECT_EQ(sized.misses, blocks.misses);
  EXPECT_DOUBLE_EQ(sized.unused, blocks.unused);
}

TEST(MemoryLayoutsTest, EachServesEverythingAndDecidesTheSameAgain) {
  const Crowd crowd(1000, 1800);
  for (const MemoryLayout layout : kLayouts) {
    const LayoutResult result = SimulateOrFail(crowd.workload, layout);
    int64_t tokens = 0;
    for (const LayoutRequest& request : crowd.workload.requests) tokens += request.new_tokens;
    // A step generates a token of each sequence that runs.
    EXPECT_NEAR(result.running * static_cast<double>(result.steps), static_cast<double>(tokens),
                1e-6)
        << MemoryLayoutName(layout);
    EXPECT_GE(result.unused, 0);
    EXPECT_GT(result.experts, 2);
    EXPECT_EQ(SimulateOrFail(crowd.workload, layout).bytes_loaded, result.bytes_loaded);
  }
}

TEST(MemoryLayoutsTest, WithoutRoomTheYoungestIsComputedAgain) {
  Crowd crowd(1000, 1800);
  crowd.workload.memory_bytes = 40'000;
  EXPECT_GT(SimulateOrFail(crowd.workload, MemoryLayout::kBlocks).preemptions, 0U);
  EXPECT_EQ(SimulateOrFail(crowd.workload, MemoryLayout::kContiguous).preemptions, 0U);
  EXPECT_GT(SimulateOrFail(crowd.workload, MemoryLayout::kContiguous).steps_waited,
            SimulateOrFail(crowd.workload, MemoryLayout::kBlocks).steps_waited);
}

TEST(MemoryLayoutsTest, WhatCannotFitIsNamed) {
  Crowd crowd(1000, 1800);
  crowd.workload.memory_bytes = 3'000;
  for (const MemoryLayout layout : kLayouts) {
    EXPECT_THAT(SimulateLayout(crowd.workload, layout).status().message(),
                HasSubstr("one token's layer"));
  }
  crowd.workload.memory_bytes = 12'000;
  for (const MemoryLayout layout : {MemoryLayout::kContiguous, MemoryLayout::kBlocks}) {
    EXPECT_THAT(SimulateLayout(crowd.workload, layout).status().message(),
                HasSubstr("does not fit the memory"));
  }
}

}  // namespace
}  // namespace expertflow
