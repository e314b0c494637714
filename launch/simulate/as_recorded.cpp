#include "launch/simulate/as_recorded.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/units.h"
#include "launch/bench/bench_model.h"
#include "launch/simulate/machine_probe.h"
#include "launch/simulate/recorded_run.h"

namespace expertflow {
namespace {

constexpr int kProbes = 5;

struct RunFigures {
  uint64_t tokens = 0;  // that were drawn
  int64_t total_ns = 0;
  int64_t stall_ns = 0;
  double tokens_per_second() const {
    return static_cast<double>(tokens) * 1e9 / static_cast<double>(total_ns);
  }
};

RunFigures RunFiguresOf(const RecordedRun& run) {
  RunFigures figures;
  for (const RecordedRow& row : run.rows()) figures.tokens += row.sampled ? 1 : 0;
  for (const RecordedRun::StepTimes& step : run.steps()) {
    figures.total_ns += step.total_ns;
    figures.stall_ns += step.stall_ns();
  }
  return figures;
}

std::string Line(const char* name, const RunFigures& figures) {
  return fmt::format(
      "  {:<10} {:>8.1f} tokens/s, stall {} ({:.1f} % of the time)\n", name,
      figures.tokens_per_second(), FormatDurationNs(figures.stall_ns),
      100.0 * static_cast<double>(figures.stall_ns) / static_cast<double>(figures.total_ns));
}

nlohmann::json Json(const RunFigures& figures) {
  return {{"tokens_per_second", figures.tokens_per_second()},
          {"total_ns", figures.total_ns},
          {"stall_ns", figures.stall_ns}};
}

}  // namespace

Result<AsRecorded> SimulateAsRecorded(const std::string& trace, const std::string& model,
                                      const std::string& work_folder) {
  ASSIGN_OR_RETURN(const RecordedRun run, LoadRecordedRun(trace));
  auto settings = SettingsOf(run.shape());
  if (!settings.ok()) return settings.status().WithContext(trace);
  if (run.steps().empty()) return InvalidArgument(trace + ": no timings in it");
  ASSIGN_OR_RETURN(const BenchModel opened, BenchModel::Open(model, work_folder));
  if (std::memcmp(run.shape().fingerprint.data(), &opened.store().fingerprint(),
                  run.shape().fingerprint.size()) != 0) {
    return InvalidArgument(fmt::format("{}: recorded from another model than {}", trace, model));
  }
  // Where all experts are alike, and in older recordings, the trace does not say it of each.
  const std::vector<uint64_t>& recorded_blocks = run.shape().block_bytes;
  RETURN_IF_ERROR(settings
                      ->TakeBlocks(recorded_blocks.empty() ? opened.store().ExpertBlockBytes()
                                                           : recorded_blocks)
                      .WithContext(trace));
  const auto config = nlohmann::json::parse(run.shape().config, nullptr, false);
  MachineProbe probe(
      opened, {.threads = config.value("threads", 1),
               .kernels = config.value("kernels", std::string("auto")),
               .resident_percent = 100.0 * settings->slots_in_all() / run.shape().experts_total(),
               .temperature = run.temperature(),
               .copy_thread = settings->copy_thread});
  for (int i = 0; i < kProbes; ++i) RETURN_IF_ERROR(probe.Run());
  ASSIGN_OR_RETURN(const MeasuredCosts costs, probe.Costs());
  ASSIGN_OR_RETURN(const DeviceSimResult result, SimulateRecorded(run, *settings, costs));

  const RunFigures recorded = RunFiguresOf(run);
  const RunFigures simulated = {recorded.tokens, result.total_ns, result.stall_ns};
  const std::string digest = fmt::format("{:016x}", result.cache_digest);
  AsRecorded out;
  out.text = fmt::format(
      "{}: {} steps, {} slots, {}\n", trace, run.steps().size(), settings->slots_in_all(),
      FormatBytesPerSecond(static_cast<double>(settings->link_bytes_per_second)));
  out.text += Line("recorded", recorded) + Line("simulated", simulated);
  out.text += fmt::format(
      "  decisions  {}, simulated; the run's are the decision_digest of its report\n"
      "  probed     {}\n",
      digest, DescribeCosts(costs));
  out.json = nlohmann::json({{"format", "expertflow-simulate-recorded"},
                             {"version", 1},
                             {"trace", trace},
                             {"steps", run.steps().size()},
                             {"tokens", recorded.tokens},
                             {"slots", settings->slots_in_all()},
                             {"link_bytes_per_second", settings->link_bytes_per_second},
                             {"hits", result.hits},
                             {"misses", result.misses},
                             {"bytes_demand", result.bytes_demand},
                             {"recorded", Json(recorded)},
                             {"simulated", Json(simulated)},
                             {"decision_digest", digest}})
                 .dump(2);
  return out;
}

}  // namespace expertflow
