// A bench engine with an expert cache whose steps are recorded, with their times.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/status.h"
#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_model.h"
#include "launch/simulate/recorded_run.h"
#include "worker/routing_recorder.h"

namespace expertflow {

class RecordedEngine {
 public:
  // Not in place, with a timeline of its own, whatever `options` say of these. REQUIRES: `model`
  // outlives it and does not move
  static Result<std::unique_ptr<RecordedEngine>> Create(const BenchModel& model,
                                                        BenchEngineOptions options);

  BenchEngine& engine() { return *engine_; }
  // Queues a sequence that goes on from random tokens: equal seeds give equal ones.
  Status StartRandom(int32_t prompt_tokens, uint32_t seed, int32_t new_tokens, float temperature);
  // What a simulation of the run needs to know.
  Result<RecordedSettings> settings() const;
  // All steps so far, which are gone then.
  Result<RecordedRun> TakeRun();

 private:
  RecordedEngine(const BenchModel& model, BenchEngineOptions options)
      : model_(model), options_(std::move(options)) {}

  const BenchModel& model_;
  BenchEngineOptions options_;
  std::unique_ptr<TimelineRecorder> timeline_;
  std::unique_ptr<BenchEngine> engine_;
  RecordedRun run_;
  std::unique_ptr<RoutingRecorder> recorder_;
};

}  // namespace expertflow
