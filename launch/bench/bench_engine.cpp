#include "launch/bench/bench_engine.h"

#include <fmt/format.h>

#include <random>
#include <utility>

#include "common/clock.h"
#include "common/process.h"
#include "common/units.h"
#include "device/cpu/cpu_device.h"

namespace expertflow {
namespace {

// Of sequences that are not greedy: sorting a whole vocabulary would take as long as the layers.
constexpr int32_t kSampledTopK = 40;

}  // namespace

Result<std::unique_ptr<BenchEngine>> BenchEngine::Create(const BenchModel& model,
                                                         const BenchEngineOptions& options) {
  std::unique_ptr<BenchEngine> bench(new BenchEngine());
  CpuDeviceOptions cpu;
  cpu.threads = options.threads;
  cpu.kernels = options.kernels;
  cpu.link = options.link;
  cpu.link.copy_thread = options.copy_thread && HasSpareCore(options.threads);
  ASSIGN_OR_RETURN(bench->device_, CreateCpuDevice(cpu));

  const StoreView& store = model.store();
  const Architecture& architecture = model.architecture();
  MemoryPlanInput input;
  input.store = StoreSizesOf(store);
  input.in_place = options.in_place;
  input.expert_memory = {.is_percent = true, .percent = options.resident_percent};
  const StrideBounds stride =
      options.stride == 0 ? StrideBounds{} : StrideBounds{options.stride, options.stride};
  input.lookahead_max = LookaheadMost(options.prefetch, stride);
  input.kv_memory_bytes =
      static_cast<uint64_t>(options.positions) * architecture.shape().kv_bytes_per_token();
  input.sequences_max = options.sequences_max;
  input.prefill_tokens_max = options.prefill_tokens;
  ASSIGN_OR_RETURN(bench->plan_, MakeMemoryPlan(architecture, input));
  EngineOptions engine;
  engine.plan = bench->plan_;
  engine.sequences_max = options.sequences_max;
  engine.prefill_tokens_max = options.prefill_tokens;
  engine.static_batches = options.static_batches;
  engine.prefetch = options.prefetch;
  engine.prefix_cache = false;  // the same prompts come again and again
  engine.dynamic_stride = !stride.fixed();
  engine.cache_ranking = options.cache_ranking;
  engine.forecaster = options.forecaster;
  engine.predictor = options.predictor;
  ASSIGN_OR_RETURN(bench->engine_,
                   Engine::Create(engine, *bench->device_, architecture, store, options.timeline));
  return bench;
}

std::string BenchEngine::DeviceSettings() const {
  const DeviceProperties& properties = device_->properties();
  return fmt::format("{}, {} kernels, {} threads", properties.name, properties.kernels,
                     properties.threads);
}

Status BenchEngine::Start(std::vector<int32_t> prompt, int32_t new_tokens, float temperature) {
  StartSequence start;
  start.sequence = SequenceId{next_sequence_++};
  start.prompt_tokens = static_cast<uint32_t>(prompt.size());
  start.tokens = std::move(prompt);
  start.max_new_tokens = static_cast<uint32_t>(new_tokens);
  start.sampling.temperature = temperature;
  start.sampling.top_k = kSampledTopK;
  start.sampling.seed = start.sequence.value;
  return engine_->Start(std::move(start));
}

Result<int64_t> BenchEngine::Step(std::vector<int32_t>* tokens) {
  const int64_t begin_ns = NowNs();
  RETURN_IF_ERROR(engine_->Step(&output_));
  const int64_t step_ns = NowNs() - begin_ns;
  if (!output_.failed.empty()) return Internal(output_.failed.front().message);
  for (const TokenEvent& event : output_.tokens) tokens->push_back(event.token);
  return step_ns;
}

Result<int64_t> BenchEngine::RunToEnd(std::vector<int32_t>* tokens) {
  int64_t total_ns = 0;
  while (!engine_->idle()) {
    ASSIGN_OR_RETURN(const int64_t step_ns, Step(tokens));
    total_ns += step_ns;
  }
  return total_ns;
}

bool HasSpareCore(int32_t threads) {
  return threads < CoreCount();
}

std::string DescribeEmulatedLink(int64_t latency_ns, int32_t threads) {
  return fmt::format("emulated, {} a copy, made by {}", FormatDurationNs(latency_ns),
                     HasSpareCore(threads) ? "a thread of its own" : "the thread that computes");
}

std::vector<int32_t> RandomPrompt(int32_t count, int32_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(count));
  for (int32_t& id : prompt) {
    id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  }
  return prompt;
}

}  // namespace expertflow
