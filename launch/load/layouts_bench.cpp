#include "launch/load/layouts_bench.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "common/units.h"
#include "sim/memory_layouts.h"
#include "sim/synthetic_routing.h"

namespace expertflow {
namespace {

// The shape of Qwen2-57B-A14B with experts of 4 bits, in the memory that the paper gives it.
constexpr int32_t kLayers = 28;
constexpr int32_t kExpertsPerLayer = 64;
constexpr int32_t kTopK = 8;
constexpr uint64_t kExpertWeights = uint64_t{3} * 3584 * 2560;
constexpr uint64_t kInt4Bytes = kExpertWeights * 5 / 8;  // with the scales of groups of 32
constexpr uint64_t kInt8Bytes = kExpertWeights * 9 / 8;
constexpr uint64_t kKvTokenBytes = uint64_t{2} * kLayers * 4 * 128 * 2;
constexpr uint64_t kMemoryBytes = 20'000'000'000;
constexpr int32_t kPopularEvery = 4;  // every fourth expert has 8 bits
constexpr int64_t kStepNs = 50'000'000;
constexpr int32_t kRoutedSequences = 32;
constexpr int32_t kRoutedTokens = 256;

struct Sizes {
  const char* name;
  bool mixed;
  std::vector<MemoryLayout> layouts;
};

}  // namespace

Result<BenchReport> BenchLayouts(const std::vector<Arrival>& arrivals) {
  SyntheticRouting routing;
  routing.experts.assign(kLayers, kExpertsPerLayer);
  routing.top_k = kTopK;
  routing.sequences = kRoutedSequences;
  routing.tokens = kRoutedTokens;
  const RoutingTrace trace = SynthesizeRouting(routing);
  LayoutWorkload workload;
  workload.trace = &trace;
  workload.kv_token_bytes = kKvTokenBytes;
  workload.memory_bytes = kMemoryBytes;
  for (const Arrival& arrival : arrivals) {
    workload.requests.push_back({(arrival.at_ns - arrivals.front().at_ns) / kStepNs,
                                 arrival.prompt_tokens, arrival.max_tokens});
  }

  BenchReport report;
  report.bench = "layouts";
  report.title = "memory that holds neither an expert nor the keys and values of a token";
  const Sizes cases[] = {
      {"INT4", false, {MemoryLayout::kContiguous, MemoryLayout::kBlocks}},
      {"INT4, a quarter INT8",
       true,
       {MemoryLayout::kContiguous, MemoryLayout::kBlocks, MemoryLayout::kSizedBlocks}}};
  for (const Sizes& sizes : cases) {
    workload.expert_bytes.assign(size_t{kLayers} * kExpertsPerLayer, kInt4Bytes);
    for (size_t i = 0; sizes.mixed && i < workload.expert_bytes.size(); i += kPopularEvery) {
      workload.expert_bytes[i] = kInt8Bytes;
    }
    for (const MemoryLayout layout : sizes.layouts) {
      ASSIGN_OR_RETURN(const LayoutResult result, SimulateLayout(workload, layout));
      report.AddRow(
          fmt::format("{}: {}", sizes.name, MemoryLayoutName(layout)), "%", {100 * result.unused},
          fmt::format("{:.0f} experts resident, {:.1f} % of uses missed, {} a step; {:.1f} "
                      "sequences, {} steps waited, {} computed again",
                      result.experts, 100 * result.miss_rate(),
                      FormatBytes(result.bytes_loaded / static_cast<uint64_t>(result.steps)),
                      result.running, result.steps_waited, result.preemptions));
    }
  }
  report.AddSetting("model", fmt::format("{} layers of {} experts, top-{}, {} of KV a token; {}",
                                         kLayers, kExpertsPerLayer, kTopK,
                                         FormatBytes(kKvTokenBytes), FormatBytes(kMemoryBytes)));
  report.AddSetting("routing", "drawn");
  report.AddSetting("requests",
                    fmt::format("{}, steps of {} ms", arrivals.size(), kStepNs / 1'000'000));
  return report;
}

}  // namespace expertflow
