// How much of a device's memory holds something when experts and KV cache share it: laid out one
// after the other as in a heap, or in blocks. Every layout serves the same requests and drops the
// least recently used expert, so that only the layouts differ; bytes and steps, no time. Pure and
// deterministic.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "sim/routing_trace.h"

namespace expertflow {

enum class MemoryLayout : uint8_t {
  // A heap: an expert takes the first gap that is large enough, a sequence all the memory that it
  // may come to need, at the highest place that other sequences leave; experts there make room.
  kContiguous,
  // KV blocks from the end on, as a sequence grows; slots of the largest expert's size from the
  // beginning; the border moves.
  kBlocks,
  // The same with slots for each size of expert, divided as a worker divides them
  // (worker/cache/slot_classes.h); the smallest lie at the border.
  kSizedBlocks,
};
std::string_view MemoryLayoutName(MemoryLayout layout);

struct LayoutRequest {
  int64_t step = 0;  // when it comes
  int32_t prompt_tokens = 1;
  int32_t new_tokens = 1;
};

struct LayoutWorkload {
  // Request i goes through the rows of sequence i % sequences, from the first on, again and again.
  const RoutingTrace* trace = nullptr;
  std::vector<uint64_t> expert_bytes;   // layer by layer
  std::vector<LayoutRequest> requests;  // ascending by step
  uint64_t kv_token_bytes = 0;
  int32_t kv_block_tokens = 16;
  int32_t sequences_max = 16;
  uint64_t memory_bytes = 0;
};

struct LayoutResult {
  int64_t steps = 0;          // in which a sequence ran
  double unused = 0;          // share of the memory that holds neither an expert nor a token's KV
  double experts = 0;         // resident; these three are means over the steps
  double running = 0;         // sequences
  uint64_t uses = 0;          // distinct experts of a (step, layer)
  uint64_t misses = 0;        // of those
  uint64_t bytes_loaded = 0;  // by misses
  uint64_t preemptions = 0;   // sequences that gave their KV back and were computed again
  int64_t steps_waited = 0;   // of all requests, from coming to being admitted
  double miss_rate() const {
    return uses == 0 ? 0 : static_cast<double>(misses) / static_cast<double>(uses);
  }
};

// An error names the request that does not fit even alone, or a memory too small for the experts of
// one (step, layer) or for a slot of each size. REQUIRES: a trace with one entry of expert_bytes an
// expert; no number is 0
Result<LayoutResult> SimulateLayout(const LayoutWorkload& workload, MemoryLayout layout);

}  // namespace expertflow
