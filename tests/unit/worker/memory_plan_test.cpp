// The memory plan: exact bytes, and what happens at its edges.
#include "worker/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/small_engine.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

// 2 layers of 5 experts, 64 bytes of KV cache per token, workspace by its limits.
class PlannedArchitecture final : public Architecture {
 public:
  PlannedArchitecture() {
    shape_.layers = 2;
    shape_.context = 100;  // not a whole number of blocks
    shape_.kv = {.heads = 1, .head_dim = 4, .shared_dim = 0};
  }
  const ModelShape& shape() const override { return shape_; }
  const WeightPlan& weights() const override { return weights_; }
  uint64_t WorkspaceBytes(const ModelLimits& limits) const override {
    return uint64_t{1'000'000} * limits.rows_max + uint64_t{1000} * limits.positions_max +
           limits.lookahead_max;
  }
  Result<std::unique_ptr<Model>> Build(Device&, const WeightSource&,
                                       const ModelLimits&) const override {
    return Internal("not built in this test");
  }
  ModelShape shape_;

 private:
  WeightPlan weights_;
};

constexpr uint64_t kSlotBytes = 8192;   // of blocks of 5000 bytes
constexpr uint64_t kBlockBytes = 1024;  // of the KV cache

MemoryPlanInput Input() {
  MemoryPlanInput input;
  input.store = {.dense_bytes = 7777, .expert_bytes = 10 * 5000, .expert_blocks = {{5000, 10}}};
  input.sequences_max = 3;
  input.prefill_tokens_max = 20;
  return input;
}

MemoryPlan MustPlan(const MemoryPlanInput& input) {
  const auto plan = MakeMemoryPlan(PlannedArchitecture(), input);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *plan : MemoryPlan();
}

std::string MustRefuse(const MemoryPlanInput& input) {
  const auto plan = MakeMemoryPlan(PlannedArchitecture(), input);
  EXPECT_FALSE(plan.ok());
  return plan.ok() ? "" : plan.status().message();
}

ByteBudget Percent(double percent) {
  return {.is_percent = true, .percent = percent};
}
ByteBudget Bytes(uint64_t bytes) {
  return {.bytes = bytes};
}

TEST(MemoryPlan, FIELD_46_ExactBytes) {
  MemoryPlanInput input = Input();
  input.expert_memory = Percent(30);
  input.streaming_buffers = 4;
  input.lookahead_max = 2;
  const MemoryPlan plan = MustPlan(input);
  EXPECT_FALSE(plan.in_place);
  EXPECT_EQ(plan.dense_bytes, 7777u);
  EXPECT_EQ(plan.slot_bytes, kSlotBytes);
  EXPECT_EQ(plan.expert_slots, 3);
  EXPECT_EQ(plan.expert_bytes, 3 * kSlotBytes);
  EXPECT_EQ(plan.streaming_bytes, 4 * kSlotBytes);
  EXPECT_EQ(plan.experts_total, 10);
  EXPECT_EQ(plan.store_bytes, 7777u + 50'000);
  // Three sequences of seven blocks.
  EXPECT_EQ(plan.kv_blocks, 3 * 7);
  EXPECT_EQ(plan.kv_tokens(), 3u * 7 * 16);
  EXPECT_EQ(plan.kv_bytes, 3 * 7 * kBlockBytes);
  EXPECT_EQ(plan.limits.rows_max, 23);
  EXPECT_EQ(plan.limits.positions_max, 100);
  EXPECT_EQ(plan.limits.lookahead_max, 2);
  EXPECT_EQ(plan.workspace_bytes, 23'000'000u + 100'000 + 2);
  EXPECT_EQ(plan.total_bytes(), 7777 + 7 * kSlotBytes + 21 * kBlockBytes + plan.workspace_bytes);
}

TEST(MemoryPlan, FIELD_46_ExpertBudgetAtItsEdges) {
  const struct {
    ByteBudget budget;
    int64_t slots;
  } cases[] = {
      {Percent(0), 0},
      {Bytes(0), 0},
      {Percent(10), 1},
      {Percent(19.99), 1},
      {Percent(99.9), 9},
      {Percent(100), 10},
      {Bytes(kSlotBytes), 1},
      {Bytes(2 * kSlotBytes - 1), 1},
      {Bytes(2 * kSlotBytes), 2},
      {Bytes(10 * kSlotBytes - 1), 9},
      {Bytes(10 * kSlotBytes), 10},
      {Bytes(uint64_t{1} << 40), 10},  // more than all: only what there is
      {Bytes(UINT64_MAX), 10},
  };
  for (const auto& [budget, slots] : cases) {
    MemoryPlanInput input = Input();
    input.expert_memory = budget;
    const MemoryPlan plan = MustPlan(input);
    EXPECT_EQ(plan.expert_slots, slots) << budget.percent << " % " << budget.bytes;
    EXPECT_EQ(plan.expert_bytes, static_cast<uint64_t>(slots) * kSlotBytes);
    EXPECT_EQ(plan.streaming_bytes, 2 * kSlotBytes);
  }
}

TEST(MemoryPlan, FIELD_46_LessThanOneExpertIsRefused) {
  for (const ByteBudget& budget : {Percent(9.9), Percent(0.001), Bytes(1), Bytes(kSlotBytes - 1)}) {
    MemoryPlanInput input = Input();
    input.expert_memory = budget;
    const std::string message = MustRefuse(input);
    EXPECT_THAT(message, HasSubstr("--expert-memory"));
    EXPECT_THAT(message, HasSubstr("8.19 kB"));
  }
}

TEST(MemoryPlan, BlocksOfWholePagesAreNotRoundedUp) {
  MemoryPlanInput input = Input();
  input.store.expert_blocks = {{4096, 10}};
  EXPECT_EQ(MustPlan(input).slot_bytes, 4096u);
  input.store.expert_blocks = {{4097, 10}};
  EXPECT_EQ(MustPlan(input).slot_bytes, 8192u);
}

TEST(MemoryPlan, InPlaceTakesNoArena) {
  MemoryPlanInput input = Input();
  input.in_place = true;
  input.expert_memory = Bytes(1);  // without effect
  input.lookahead_max = 3;
  const MemoryPlan plan = MustPlan(input);
  EXPECT_TRUE(plan.in_place);
  EXPECT_EQ(plan.dense_bytes, 0u);
  EXPECT_EQ(plan.expert_slots, 0);
  EXPECT_EQ(plan.expert_bytes, 0u);
  EXPECT_EQ(plan.streaming_bytes, 0u);
  EXPECT_EQ(plan.limits.lookahead_max, 0);
  EXPECT_EQ(plan.store_bytes, 7777u + 50'000);
  EXPECT_EQ(plan.total_bytes(), plan.kv_bytes + plan.workspace_bytes);
}

TEST(MemoryPlan, KvMemoryIsWholeBlocks) {
  const struct {
    uint64_t bytes;
    int64_t blocks;
    int32_t positions;
  } cases[] = {{kBlockBytes, 1, 16},
               {2 * kBlockBytes - 1, 1, 16},
               {2 * kBlockBytes, 2, 32},
               {6 * kBlockBytes, 6, 96},
               {7 * kBlockBytes, 7, 100}};
  for (const auto& [bytes, blocks, positions] : cases) {
    MemoryPlanInput input = Input();
    input.kv_memory_bytes = bytes;
    const MemoryPlan plan = MustPlan(input);
    EXPECT_EQ(plan.kv_blocks, blocks) << bytes;
    EXPECT_EQ(plan.kv_bytes, static_cast<uint64_t>(blocks) * kBlockBytes);
    EXPECT_EQ(plan.limits.positions_max, positions);
  }
  MemoryPlanInput input = Input();
  input.kv_memory_bytes = kBlockBytes - 1;
  EXPECT_THAT(MustRefuse(input), HasSubstr("--kv-memory 1.02 kB holds less than one block"));
}

TEST(MemoryPlan, KvMemoryByDefault) {
  MemoryPlanInput input = Input();
  input.sequences_max = 16;
  EXPECT_EQ(MustPlan(input).kv_blocks, 4 * 7);  // four sequences of full length
  input.sequences_max = 1;
  EXPECT_EQ(MustPlan(input).kv_blocks, 7);

  PlannedArchitecture large;
  large.shape_.context = 1 << 20;
  large.shape_.kv = {.heads = 1, .head_dim = 1 << 16, .shared_dim = 0};  // 1 MiB a token
  input.sequences_max = 16;
  auto plan = MakeMemoryPlan(large, input);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_bytes, uint64_t{256} << 20);
  large.shape_.kv.heads = 1 << 10;  // one block is above the default's bound
  plan = MakeMemoryPlan(large, input);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_blocks, 1);
}

TEST(MemoryPlan, ASmallerTypeOfTheKvCacheHoldsMoreTokens) {
  MemoryPlanInput input = Input();
  input.kv_memory_bytes = 6 * kBlockBytes;
  input.kv_dtype = DType::kBF16;
  EXPECT_EQ(MustPlan(input).kv_blocks, 12);
  EXPECT_EQ(MustPlan(input).kv_dtype, DType::kBF16);
  input.kv_dtype = DType::kInt8;  // a head of 4 is a group of 32, with its scale
  EXPECT_EQ(MustPlan(input).kv_blocks, 6 * 1024 / (2 * 2 * 36 * 16));
}

// The widest that a config may be: the size of all sequences does not fit 64 bits.
TEST(MemoryPlan, HugeKvCachesDoNotOverflow) {
  PlannedArchitecture huge;
  huge.shape_.context = 1 << 26;
  huge.shape_.kv = {.heads = 1 << 17, .head_dim = 1 << 16, .shared_dim = 0};
  MemoryPlanInput input = Input();
  input.sequences_max = 4;
  const auto plan = MakeMemoryPlan(huge, input);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->kv_blocks, 1);
}

TEST(MemoryPlan, OptionsOutOfRangeAreNamed) {
  MemoryPlanInput input = Input();
  input.sequences_max = 0;
  EXPECT_THAT(MustRefuse(input), HasSubstr("--sequences-max"));
  input = Input();
  input.prefill_tokens_max = 0;
  EXPECT_THAT(MustRefuse(input), HasSubstr("--prefill-tokens"));
  input = Input();
  input.streaming_buffers = 1;
  EXPECT_THAT(MustRefuse(input), HasSubstr("--streaming-buffers"));
  input.in_place = true;
  EXPECT_EQ(MustPlan(input).streaming_bytes, 0u);
}

TEST(MemoryPlan, JsonHoldsTheNumbers) {
  MemoryPlanInput input = Input();
  input.expert_memory = Percent(20);
  const MemoryPlan plan = MustPlan(input);
  EXPECT_EQ(
      MemoryPlanJson(plan),
      R"({"in_place":false,"dense_bytes":7777,"expert_slots":2,"slot_bytes":8192,)"
      R"("slot_classes":[{"slot_bytes":8192,"experts":10,"slots":2}],)"
      R"("expert_bytes":16384,"streaming_buffers":2,"streaming_bytes":16384,"kv_dtype":"F32",)"
      R"("kv_blocks":21,"kv_blocks_most":21,)"
      R"("kv_tokens":336,"kv_bytes":21504,"workspace_bytes":23100000,"experts_total":10,)"
      R"("store_bytes":57777,"total_bytes":)" +
          std::to_string(7777 + 16384 + 16384 + 21504 + 23100000) + "}");
}

TEST(MemoryPlan, TheKvCacheMayGrowIntoSlots) {
  MemoryPlanInput input = Input();
  input.expert_memory = Percent(50);
  input.kv_memory_bytes = 4 * kBlockBytes;
  input.kv_memory_most_bytes = 4 * kBlockBytes + 2 * kSlotBytes + 1;
  const MemoryPlan plan = MustPlan(input);
  // Eight blocks of 1,024 bytes are a slot.
  EXPECT_EQ(plan.exchange.slots, 1);
  EXPECT_EQ(plan.exchange.blocks, 8);
  EXPECT_EQ(plan.exchanges_most, 2);
  EXPECT_EQ(plan.kv_blocks, 4);
  EXPECT_EQ(plan.kv_blocks_most(), 4 + 16);
  EXPECT_EQ(plan.kv_tokens(), 20u * 16);
  EXPECT_EQ(plan.limits.positions_max, 100);
  input.kv_memory_most_bytes = 0;
  EXPECT_EQ(plan.total_bytes() - plan.workspace_bytes,
            MustPlan(input).total_bytes() - MustPlan(input).workspace_bytes);
  // No more than all slots.
  input.kv_memory_most_bytes = uint64_t{1} << 50;
  EXPECT_EQ(MustPlan(input).exchanges_most, 5);
  input.kv_memory_most_bytes = 3 * kBlockBytes;
  EXPECT_THAT(MustRefuse(input), HasSubstr("--kv-memory-most"));
  input.kv_memory_most_bytes = 5 * kBlockBytes;
  input.in_place = true;
  EXPECT_THAT(MustRefuse(input), HasSubstr("no expert slots"));
}

// Ten experts of two pages and thirty of one.
MemoryPlanInput MixedInput() {
  MemoryPlanInput input = Input();
  input.store.expert_blocks = {{4000, 30}, {8192, 10}};
  input.store.expert_bytes = 10 * 8192 + 30 * 4000;
  return input;
}

TEST(MemoryPlan, FIELD_46_SlotsOfSeveralSizes) {
  const struct {
    ByteBudget budget;
    int64_t large;
    int64_t small;
  } cases[] = {
      {Percent(0), 0, 0},
      {Percent(3), 1, 1},
      {Percent(9), 1, 2},
      {Percent(10), 1, 3},
      {Percent(50), 5, 15},
      {Percent(100), 10, 30},
      {Bytes(3 * 4096), 1, 1},
      {Bytes(25 * 4096), 5, 15},
      {Bytes(4 * 4096), 1, 2},
      {Bytes(5 * 4096 - 1), 1, 2},
      {Bytes(50 * 4096 - 1), 10, 29},
      {Bytes(UINT64_MAX), 10, 30},
  };
  for (const auto& [budget, large, small] : cases) {
    MemoryPlanInput input = MixedInput();
    input.expert_memory = budget;
    const MemoryPlan plan = MustPlan(input);
    ASSERT_EQ(plan.slot_classes.size(), 2u);
    EXPECT_EQ(plan.slot_classes[0].slots, large) << budget.percent << " % " << budget.bytes;
    EXPECT_EQ(plan.slot_classes[1].slots, small) << budget.percent << " % " << budget.bytes;
    EXPECT_EQ(plan.expert_slots, large + small);
    EXPECT_EQ(plan.experts_total, 40);
    EXPECT_EQ(plan.expert_bytes, static_cast<uint64_t>(large * 8192 + small * 4096));
    EXPECT_EQ(plan.slot_bytes, 8192u);
    EXPECT_EQ(plan.streaming_bytes, 2 * 8192u);
  }
  for (const ByteBudget& budget : {Percent(2), Bytes(3 * 4096 - 1)}) {
    MemoryPlanInput input = MixedInput();
    input.expert_memory = budget;
    EXPECT_THAT(MustRefuse(input), HasSubstr("less than one expert of each of 2 sizes (12.3 kB)"));
  }
}

TEST(MemoryPlan, TheKvCacheGrowsIntoTheSmallestSlots) {
  MemoryPlanInput input = MixedInput();
  input.expert_memory = Percent(50);
  input.kv_memory_bytes = 4 * kBlockBytes;
  input.kv_memory_most_bytes = uint64_t{1} << 50;
  const MemoryPlan plan = MustPlan(input);
  EXPECT_EQ(plan.exchange.slots, 1);
  EXPECT_EQ(plan.exchange.blocks, 4);
  EXPECT_EQ(plan.exchanges_most, 15);
}

// What the plan says is what the engine takes from the device.
TEST(MemoryPlan, FIELD_46_TheEngineAllocatesExactlyThePlan) {
  const testing::SmallModel model({.vocab = 61, .hidden = 36});  // sizes that need alignment
  for (const auto& options : {testing::SmallEngineOptions{},
                              {.in_place = false, .resident_percent = 0},
                              {.in_place = false, .resident_percent = 50},
                              {.kv_dtype = DType::kBF16},
                              {.kv_dtype = DType::kInt8},
                              {.in_place = false, .resident_percent = 100, .kv_blocks = 3}}) {
    const auto device = testing::MakeFaultDevice();
    const auto engine = testing::MakeEngine(model, *device, options);
    EXPECT_EQ(device->bytes_allocated(), testing::PlanFor(model, options).total_bytes())
        << options.in_place << " " << options.resident_percent;
  }
}

}  // namespace
}  // namespace expertflow
