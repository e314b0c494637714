// An engine over a small model with a device that can fail.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "tests/unit/worker/fault_device.h"
#include "tests/unit/worker/small_model.h"
#include "worker/engine.h"

namespace expertflow::testing {

struct SmallEngineOptions {
  bool in_place = true;
  double resident_percent = 0;  // of the experts, unless in place
  int64_t kv_blocks = 16;
  DType kv_dtype = DType::kF32;
  int32_t sequences_max = 8;
  int32_t prefill_tokens = 64;
  bool prefix_cache = true;
  int64_t kv_blocks_most = 0;  // 0: as many as kv_blocks
};

inline MemoryPlan PlanFor(const SmallModel& model, const SmallEngineOptions& options) {
  MemoryPlanInput input;
  input.store = StoreSizesOf(model.store());
  input.in_place = options.in_place;
  input.expert_memory = {.is_percent = true, .percent = options.resident_percent};
  input.kv_memory_bytes = static_cast<uint64_t>(options.kv_blocks) * kKvBlockTokens *
                          model.architecture().shape().kv_bytes_per_token(options.kv_dtype);
  input.kv_memory_most_bytes = static_cast<uint64_t>(options.kv_blocks_most) * kKvBlockTokens *
                               model.architecture().shape().kv_bytes_per_token(options.kv_dtype);
  input.kv_dtype = options.kv_dtype;
  input.sequences_max = options.sequences_max;
  input.prefill_tokens_max = options.prefill_tokens;
  const auto plan = MakeMemoryPlan(model.architecture(), input);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *plan;
}

// The device outlives the engine and what the engine is moved into.
inline std::unique_ptr<FaultDevice> MakeFaultDevice() {
  auto device = CreateCpuDevice({.threads = 1});
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return std::make_unique<FaultDevice>(std::move(device).value());
}

inline std::unique_ptr<Engine> MakeEngine(const SmallModel& model, Device& device,
                                          const SmallEngineOptions& options) {
  EngineOptions engine;
  engine.plan = PlanFor(model, options);
  engine.sequences_max = options.sequences_max;
  engine.prefill_tokens_max = options.prefill_tokens;
  engine.prefix_cache = options.prefix_cache;
  engine.prefetch = false;
  auto made = Engine::Create(engine, device, model.architecture(), model.store(), nullptr);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

inline StartSequence Request(uint64_t id, std::vector<int32_t> tokens, uint32_t max_new_tokens) {
  StartSequence start;
  start.sequence = {id};
  start.prompt_tokens = static_cast<uint32_t>(tokens.size());
  start.tokens = std::move(tokens);
  start.max_new_tokens = max_new_tokens;
  return start;
}

}  // namespace expertflow::testing
