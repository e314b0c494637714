// The memory plan of a worker: what goes where, in bytes, computed before anything is allocated and
// shown by `inspect`, `run --report` and `status`. The worker allocates exactly this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/token_blocks.h"
#include "common/units.h"
#include "expert_store/layout.h"
#include "expert_store/store_view.h"
#include "model/arch/architecture.h"
#include "model/arch/model.h"
#include "predictor/core/stride_bounds.h"
#include "worker/cache/slot_classes.h"
#include "worker/schedule/memory_balance.h"

namespace expertflow {

// What the model is to be built for.
constexpr int32_t LookaheadMost(bool prefetch, const StrideBounds& stride) {
  return prefetch ? stride.most : 0;
}

// The model as the store holds it.
struct StoreSizes {
  uint64_t dense_bytes = 0;   // as a worker's private copy holds them: aligned for its device
  uint64_t expert_bytes = 0;  // all experts together
  BlockCounts expert_blocks;

  int64_t expert_count() const;
  // The largest; 0 without experts.
  uint64_t expert_block_bytes() const { return LargestBlock(expert_blocks); }
};

StoreSizes StoreSizesOf(const StoreView& store);

struct MemoryPlanInput {
  StoreSizes store;
  bool in_place = false;  // compute from the store's mapping: no arena
  ByteBudget expert_memory{.is_percent = true, .percent = 100};
  int32_t streaming_buffers = 2;
  uint64_t kv_memory_bytes = 0;  // 0: four sequences of full length, at most 256 MiB
  // What the KV cache may take in all, from the slots' memory, while it runs (schedule/
  // memory_balance.h); 0: what it has from the start.
  uint64_t kv_memory_most_bytes = 0;
  DType kv_dtype = DType::kF32;  // as in KvLayer
  int32_t sequences_max = 16;
  int32_t prefill_tokens_max = 512;
  int32_t lookahead_max = 0;
};

struct MemoryPlan {
  bool in_place = false;
  uint64_t dense_bytes = 0;             // private copy of the dense weights; 0 in place
  std::vector<SlotClass> slot_classes;  // the largest first; several for blocks of several sizes
  int64_t expert_slots = 0;             // all classes
  uint64_t slot_bytes = 0;              // of one of the largest slots or a streaming buffer
  uint64_t expert_bytes = 0;            // all slots
  int32_t streaming_buffers = 0;
  uint64_t streaming_bytes = 0;  // all streaming buffers
  DType kv_dtype = DType::kF32;
  int64_t kv_blocks = 0;  // from the start
  uint64_t kv_bytes = 0;
  MemoryExchange exchange;     // of slots for KV blocks
  int32_t exchanges_most = 0;  // 0: the KV cache keeps its size
  uint64_t workspace_bytes = 0;
  int64_t experts_total = 0;
  uint64_t store_bytes = 0;  // shared with every worker of the host
  ModelLimits limits;

  int64_t kv_blocks_most() const { return kv_blocks + exchanges_most * exchange.blocks; }
  uint64_t kv_tokens() const;  // at most
  // What one worker takes for itself.
  uint64_t total_bytes() const {
    return dense_bytes + expert_bytes + streaming_bytes + kv_bytes + workspace_bytes;
  }
};

// Errors name the option: a budget that holds less than one expert of each size but is not zero, KV
// memory for less than one block, ...
Result<MemoryPlan> MakeMemoryPlan(const Architecture& architecture, const MemoryPlanInput& input);

// One JSON object with the fields above.
std::string MemoryPlanJson(const MemoryPlan& plan);

}  // namespace expertflow
