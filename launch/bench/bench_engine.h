// An engine with its device in this process: the worker without coordinator and transport.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "launch/bench/bench_model.h"
#include "worker/engine.h"

namespace expertflow {

struct BenchEngineOptions {
  int32_t threads = 2;
  std::string kernels = "auto";
  bool in_place = true;
  double resident_percent = 100;  // of the experts, when not in place
  CacheRanking cache_ranking = CacheRanking::kGuarded;
  bool prefetch = false;
  int32_t stride = 0;                              // layers of lead of the prefetch; 0: as measured
  std::shared_ptr<const NextUseModel> forecaster;  // null: none
  std::shared_ptr<const HybridModel> predictor;    // null: the pre-gate
  LinkProperties link;                             // emulated when its rate is not 0
  bool copy_thread = true;                         // for such a link, where a core is spare
  int32_t positions = 1024;                        // of all sequences together
  int32_t sequences_max = 16;
  int32_t prefill_tokens = 512;          // of a prompt that run together
  bool static_batches = false;           // SchedulerOptions
  TimelineRecorder* timeline = nullptr;  // outlives the engine
};

class BenchEngine {
 public:
  // REQUIRES: `model` outlives it and does not move
  static Result<std::unique_ptr<BenchEngine>> Create(const BenchModel& model,
                                                     const BenchEngineOptions& options);

  Device& device() { return *device_; }
  Engine& engine() { return *engine_; }
  const LinkProperties& link() const { return device_->properties().link; }
  const MemoryPlan& plan() const { return plan_; }
  // "avx2, 2 threads"
  std::string DeviceSettings() const;

  // Queues a sequence that ends after `new_tokens` and not before; greedy at temperature 0,
  // else drawn from the 40 likeliest.
  Status Start(std::vector<int32_t> prompt, int32_t new_tokens, float temperature = 0);
  // One step; tokens are appended. Returns its nanoseconds. A failed sequence is an error.
  Result<int64_t> Step(std::vector<int32_t>* tokens);
  // Steps until idle.
  Result<int64_t> RunToEnd(std::vector<int32_t>* tokens);

 private:
  BenchEngine() = default;

  std::unique_ptr<Device> device_;
  MemoryPlan plan_;
  std::unique_ptr<Engine> engine_;
  uint64_t next_sequence_ = 1;
  StepOutput output_;
};

// For the copies of an emulated link.
bool HasSpareCore(int32_t threads);
// "emulated, 10 us a copy, made by a thread of its own"
std::string DescribeEmulatedLink(int64_t latency_ns, int32_t threads);

// `count` token ids below `vocab`; equal arguments give equal ids.
std::vector<int32_t> RandomPrompt(int32_t count, int32_t vocab, uint32_t seed);

}  // namespace expertflow
