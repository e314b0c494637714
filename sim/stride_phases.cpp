#include "sim/stride_phases.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "predictor/core/dynamic_stride.h"
#include "sim/measured_times.h"
#include "sim/synthetic_routing.h"

namespace expertflow {
namespace {

constexpr int32_t kLayers = 24;
constexpr int32_t kExperts = 60;
constexpr int32_t kTopK = 4;
constexpr uint64_t kExpertBytes = 4'000'000;

constexpr MeasuredCosts kCosts = {
    .layer = 100'000, .experts = 10'000, .expert = 40'000, .step_end = 200'000};

constexpr uint64_t kGigabyte = 1'000'000'000;
constexpr StridePhasesSetting kSettings[] = {
    {0.5, 40 * kGigabyte, 1},
    {0.5, 20 * kGigabyte, 1},
    {0.5, 20 * kGigabyte, 4},
    {0.8, 10 * kGigabyte, 1},
    {0.9, 6 * kGigabyte, 1},
    {0.3, 10 * kGigabyte, 1},
    {0.5, 40 * kGigabyte, 1, PhaseChange::kBatch},
    {0.8, 20 * kGigabyte, 1, PhaseChange::kBatch},
    {0.5, 30 * kGigabyte, 1, PhaseChange::kPrompts},
    {0.8, 10 * kGigabyte, 2, PhaseChange::kPrompts},
};
constexpr int32_t kFixedStrides[] = {1, 2, 3, 4, 6, 8};

// Sequences that begin and end with the phase.
RoutingTrace DrawPhase(const StridePhasesSetting& setting, size_t phase) {
  const bool changed = phase == 1;
  SyntheticRouting routing;
  routing.experts.assign(kLayers, kExperts);
  routing.top_k = kTopK;
  const bool more = changed && setting.change == PhaseChange::kBatch;
  routing.sequences = more ? 4 * setting.batch : setting.batch;
  routing.tokens = static_cast<int32_t>(StridePhases::kPhaseSteps);
  routing.seed = phase + 1;
  if (changed && setting.change == PhaseChange::kPrompts) {
    routing.skew = 0.3;
    routing.persistence = 0.1;
  }
  return SynthesizeRouting(routing);
}

}  // namespace

std::string StridePhasesSetting::Description() const {
  constexpr const char* kNames[] = {"link", "batch", "prompts"};
  return fmt::format("{:.0f} % resident, {} GB/s, batch {}, {} change{}", 100 * residency,
                     link_bytes_per_second / kGigabyte, batch, kNames[static_cast<int>(change)],
                     change == PhaseChange::kPrompts ? "" : "s");
}

std::span<const StridePhasesSetting> StridePhases::Settings() {
  return kSettings;
}

std::span<const int32_t> StridePhases::FixedStrides() {
  return kFixedStrides;
}

StridePhases::StridePhases(const StridePhasesSetting& setting) : setting_(setting) {
  std::vector<RecordedRow> rows;  // in the order of steps
  for (size_t phase = 0; phase < kPhases; ++phase) {
    const RoutingTrace part = DrawPhase(setting, phase);
    trace_.experts = part.experts;
    trace_.top_k = part.top_k;
    const auto width = size_t{kLayers} * kTopK;
    const size_t sequences = part.chosen.size() / (width * kPhaseSteps);
    const int32_t before = rows.empty() ? 0 : rows.back().sequence + 1;
    for (size_t step = 0; step < kPhaseSteps; ++step) {
      for (size_t s = 0; s < sequences; ++s) {
        const size_t row = s * kPhaseSteps + step;
        const auto from = part.chosen.begin() + static_cast<ptrdiff_t>(row * width);
        trace_.chosen.insert(trace_.chosen.end(), from, from + static_cast<ptrdiff_t>(width));
        rows.push_back({.step = static_cast<uint32_t>(phase * kPhaseSteps + step),
                        .sequence = before + static_cast<int32_t>(s)});
      }
    }
  }
  trace_.weights.resize(trace_.chosen.size(), 1.0F / kTopK);
  lockstep_ = MakeRecordedSteps(trace_, rows);
}

Result<DeviceSimResult> StridePhases::Run(std::unique_ptr<StrideController> stride,
                                          const PrefetchPlannerOptions& prefetch) const {
  NoisyOracle predictions(trace_, lockstep_, {.89, .80, .75, .72, .69, .67, .64, .62}, 1);
  const uint64_t rate = setting_.link_bytes_per_second;
  DeviceSimOptions options;
  options.slots = {static_cast<int32_t>(setting_.residency * kLayers * kExperts)};
  options.expert_bytes = kExpertBytes;
  options.link_bytes_per_second = rate;
  options.link_latency_ns = 10'000;
  if (setting_.change == PhaseChange::kLink) {
    options.link_changes = {{kPhaseSteps, rate / 2}, {2 * kPhaseSteps, rate * 2}};
  }
  options.stride = std::move(stride);
  options.predictions = &predictions;
  options.prefetch = prefetch;
  return SimulateDevice(trace_, lockstep_, MeasuredTimes(kCosts), std::move(options));
}

Result<DeviceSimResult> StridePhases::RunDynamic() const {
  DynamicStrideOptions options;
  options.expert_bytes = kExpertBytes;
  options.moe_layers = kLayers;
  return Run(std::make_unique<DynamicStride>(options), {});
}

double StallShare(const DeviceSimResult& result, size_t phase) {
  int64_t stall = 0;
  int64_t time = 0;
  const size_t end = (phase + 1) * StridePhases::kPhaseSteps;
  for (size_t step = phase * StridePhases::kPhaseSteps; step < end; ++step) {
    stall += result.step_stall_ns[step];
    time += result.step_ns[step];
  }
  return static_cast<double>(stall) / static_cast<double>(time);
}

int64_t LateMoves(const DeviceSimResult& result, size_t phase) {
  const size_t begin = phase * StridePhases::kPhaseSteps;
  return std::count_if(result.strides.begin(), result.strides.end(),
                       [&](const StrideChange& change) {
                         return change.step > begin + StridePhases::kSettleSteps &&
                                change.step < begin + StridePhases::kPhaseSteps;
                       });
}

}  // namespace expertflow
