#include "launch/bench/recorded_engine.h"

#include "worker/cached_executor.h"

namespace expertflow {

Result<std::unique_ptr<RecordedEngine>> RecordedEngine::Create(const BenchModel& model,
                                                               BenchEngineOptions options) {
  options.in_place = false;
  std::unique_ptr<RecordedEngine> recorded(new RecordedEngine(model, std::move(options)));
  ASSIGN_OR_RETURN(recorded->timeline_, TimelineRecorder::Create("", true));
  recorded->options_.timeline = recorded->timeline_.get();
  ASSIGN_OR_RETURN(recorded->engine_, BenchEngine::Create(model, recorded->options_));
  ASSIGN_OR_RETURN(
      recorded->recorder_,
      RoutingRecorder::Create(
          RecordedShape(model.store(), model.architecture().shape(), false, "{}"), recorded->run_));
  recorded->engine_->engine().RecordTo(recorded->recorder_.get());
  return recorded;
}

Status RecordedEngine::StartRandom(int32_t prompt_tokens, uint32_t seed, int32_t new_tokens,
                                   float temperature) {
  return engine_->Start(RandomPrompt(prompt_tokens, model_.architecture().shape().vocab, seed),
                        new_tokens, temperature);
}

Result<RecordedSettings> RecordedEngine::settings() const {
  const MemoryPlan& plan = engine_->plan();
  RecordedSettings settings;
  settings.slots = SlotsOf(plan.slot_classes);
  settings.stream_buffers = plan.streaming_buffers;
  settings.chunk_bytes = EngineOptions{}.transfer_chunk_bytes;
  settings.link_bytes_per_second = options_.link.bytes_per_second;
  settings.link_latency_ns = options_.link.latency_ns;
  settings.copy_thread = engine_->link().copy_thread;
  RETURN_IF_ERROR(settings.TakeBlocks(model_.store().ExpertBlockBytes()));
  return settings;
}

Result<RecordedRun> RecordedEngine::TakeRun() {
  RETURN_IF_ERROR(recorder_->status());
  return std::move(run_);
}

}  // namespace expertflow
