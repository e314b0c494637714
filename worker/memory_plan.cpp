#include "worker/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "device/arena.h"

namespace expertflow {
namespace {

constexpr uint64_t kKvBytesDefaultMax = uint64_t{256} << 20;
constexpr int32_t kKvSequencesDefault = 4;

// A share is a share of the experts, of each class the same, but at least one; bytes are bytes of
// slots.
Status PlanSlots(const ByteBudget& budget, std::span<SlotClass> classes) {
  const bool wants_some = budget.is_percent ? budget.percent > 0 : budget.bytes > 0;
  if (!wants_some) return OkStatus();
  if (budget.is_percent) {
    int64_t experts = 0;
    for (SlotClass& c : classes) {
      experts += c.experts;
      const uint64_t share = budget.Resolve(static_cast<uint64_t>(c.experts));
      c.slots = std::max<int64_t>(1, static_cast<int64_t>(share));
    }
    if (budget.Resolve(static_cast<uint64_t>(experts)) > 0) return OkStatus();
  } else if (budget.bytes >= OneSlotOfEach(classes)) {
    DivideAmongClasses(budget.bytes, classes);
    return OkStatus();
  }
  return InvalidArgument(fmt::format(
      "--expert-memory holds less than one expert{} ({}); use 0 for streaming only, or at least "
      "that much",
      classes.size() == 1 ? "" : fmt::format(" of each of {} sizes", classes.size()),
      FormatBytes(OneSlotOfEach(classes))));
}

Status PlanExperts(const MemoryPlanInput& input, MemoryPlan* plan) {
  const StoreSizes& store = input.store;
  plan->experts_total = store.expert_count();
  if (input.in_place) return OkStatus();
  plan->streaming_buffers = input.streaming_buffers;
  std::vector<SlotClass>& classes = plan->slot_classes;
  classes = SlotClassesOf(store.expert_blocks);
  if (store.expert_blocks.empty()) return OkStatus();
  plan->slot_bytes = classes.front().slot_bytes;
  RETURN_IF_ERROR(PlanSlots(input.expert_memory, classes));
  for (const SlotClass& c : classes) {
    plan->expert_slots += c.slots;
    plan->expert_bytes += static_cast<uint64_t>(c.slots) * c.slot_bytes;
  }
  plan->streaming_bytes = static_cast<uint64_t>(input.streaming_buffers) * plan->slot_bytes;
  return OkStatus();
}

Status PlanExchanges(const MemoryPlanInput& input, uint64_t block_bytes, MemoryPlan* plan) {
  const uint64_t most = input.kv_memory_most_bytes;
  if (most == 0) return OkStatus();
  if (most < plan->kv_bytes) {
    return InvalidArgument(
        fmt::format("--kv-memory-most {} is less than the KV cache has from the start ({}, "
                    "--kv-memory)",
                    FormatBytes(most), FormatBytes(plan->kv_bytes)));
  }
  if (plan->expert_slots == 0) {
    return InvalidArgument(
        "--kv-memory-most: there are no expert slots that the KV cache could take memory from "
        "(--device-memory arena, --expert-memory)");
  }
  // The smallest slots lie at the border.
  const SlotClass& border = plan->slot_classes.back();
  plan->exchange = ExchangeOf(border.slot_bytes, block_bytes);
  const auto more = static_cast<int64_t>(most / block_bytes) - plan->kv_blocks;
  plan->exchanges_most = static_cast<int32_t>(
      std::min(more / plan->exchange.blocks, border.slots / plan->exchange.slots));
  return OkStatus();
}

Status PlanKv(const ModelShape& shape, const MemoryPlanInput& input, MemoryPlan* plan) {
  plan->kv_dtype = input.kv_dtype;
  const uint64_t block_bytes = shape.kv_bytes_per_token(input.kv_dtype) * kKvBlockTokens;
  const int64_t context_blocks = (shape.context + kKvBlockTokens - 1) / kKvBlockTokens;
  // In blocks, because the bytes of all sequences need not fit 64 bits.
  const uint64_t full =
      static_cast<uint64_t>(context_blocks) * std::min(input.sequences_max, kKvSequencesDefault);
  const uint64_t default_blocks =
      std::max<uint64_t>(std::min(full, kKvBytesDefaultMax / block_bytes), 1);
  const uint64_t wanted =
      input.kv_memory_bytes > 0 ? input.kv_memory_bytes : default_blocks * block_bytes;
  plan->kv_blocks = static_cast<int64_t>(wanted / block_bytes);
  if (plan->kv_blocks == 0) {
    return InvalidArgument(fmt::format("--kv-memory {} holds less than one block of {} tokens ({})",
                                       FormatBytes(wanted), kKvBlockTokens,
                                       FormatBytes(block_bytes)));
  }
  plan->kv_bytes = static_cast<uint64_t>(plan->kv_blocks) * block_bytes;
  return PlanExchanges(input, block_bytes, plan);
}

}  // namespace

StoreSizes StoreSizesOf(const StoreView& store) {
  StoreSizes sizes;
  for (const DenseTensor& tensor : store.dense()) {
    sizes.dense_bytes = ArenaEnd(sizes.dense_bytes, tensor.bytes);
  }
  sizes.expert_bytes = store.total_expert_bytes();
  sizes.expert_blocks = store.expert_blocks();
  return sizes;
}

int64_t StoreSizes::expert_count() const {
  int64_t count = 0;
  for (const auto& [bytes, experts] : expert_blocks) count += experts;
  return count;
}

uint64_t MemoryPlan::kv_tokens() const {
  return static_cast<uint64_t>(kv_blocks_most()) * kKvBlockTokens;
}

Result<MemoryPlan> MakeMemoryPlan(const Architecture& architecture, const MemoryPlanInput& input) {
  const ModelShape& shape = architecture.shape();
  if (input.prefill_tokens_max < 1 || input.sequences_max < 1) {
    return InvalidArgument("--prefill-tokens and --sequences-max must be at least 1");
  }
  if (!input.in_place && input.streaming_buffers < 2) {
    return InvalidArgument("--streaming-buffers must be at least 2");
  }
  MemoryPlan plan;
  plan.in_place = input.in_place;
  plan.dense_bytes = input.in_place ? 0 : input.store.dense_bytes;
  plan.store_bytes = input.store.dense_bytes + input.store.expert_bytes;
  RETURN_IF_ERROR(PlanExperts(input, &plan));
  RETURN_IF_ERROR(PlanKv(shape, input, &plan));
  // A step holds the prompt chunk and one row of every other sequence.
  plan.limits.rows_max = input.prefill_tokens_max + input.sequences_max;
  plan.limits.positions_max =
      static_cast<int32_t>(std::min<uint64_t>(shape.context, plan.kv_tokens()));
  plan.limits.lookahead_max = input.in_place ? 0 : input.lookahead_max;
  plan.workspace_bytes = architecture.WorkspaceBytes(plan.limits);
  return plan;
}

std::string MemoryPlanJson(const MemoryPlan& plan) {
  std::string classes;
  for (const SlotClass& c : plan.slot_classes) {
    classes += fmt::format(R"({}{{"slot_bytes":{},"experts":{},"slots":{}}})",
                           classes.empty() ? "" : ",", c.slot_bytes, c.experts, c.slots);
  }
  return fmt::format(
      R"({{"in_place":{},"dense_bytes":{},"expert_slots":{},"slot_bytes":{},"slot_classes":[{}],"expert_bytes":{},)"
      R"("streaming_buffers":{},"streaming_bytes":{},"kv_dtype":"{}","kv_blocks":{},"kv_blocks_most":{},"kv_tokens":{},)"
      R"("kv_bytes":{},)"
      R"("workspace_bytes":{},"experts_total":{},"store_bytes":{},"total_bytes":{}}})",
      plan.in_place, plan.dense_bytes, plan.expert_slots, plan.slot_bytes, classes,
      plan.expert_bytes, plan.streaming_buffers, plan.streaming_bytes, DTypeName(plan.kv_dtype),
      plan.kv_blocks, plan.kv_blocks_most(), plan.kv_tokens(), plan.kv_bytes, plan.workspace_bytes,
      plan.experts_total, plan.store_bytes, plan.total_bytes());
}

}  // namespace expertflow
