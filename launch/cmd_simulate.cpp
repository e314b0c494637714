#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mapped_file.h"
#include "launch/commands.h"
#include "launch/load/arrival_options.h"
#include "launch/model_source.h"
#include "launch/option_values.h"
#include "launch/simulate/as_recorded.h"
#include "launch/simulate/hardware_profiles.h"
#include "launch/simulate/job_simulation.h"
#include "launch/simulate/sim_model.h"
#include "launch/simulate/simulation.h"
#include "launch/trace/trace_source.h"
#include "predictor/next_use_file.h"
#include "sim/arms.h"
#include "sim/routing_statistics.h"
#include "sim/synthetic_routing.h"

namespace expertflow {
namespace {

constexpr const char* kWorkFolder = "/tmp";  // for a model that has to be packed

Result<std::vector<double>> ParseRecall(const Options& options) {
  std::vector<double> recall;
  for (const std::string& part : SplitAtCommas(options.Text("recall"))) {
    const double value = ParseNumber(part).value_or(-1);
    if (!(value > 0 && value <= 1)) {
      return InvalidArgument(
          fmt::format("{}: expected numbers from 0 to 1, with commas between, found \"{}\"",
                      options.Origin("recall"), options.Text("recall")));
    }
    recall.push_back(value);
  }
  if (recall.empty()) return InvalidArgument(options.Origin("recall") + ": none given");
  return recall;
}

// "skew=1.9,common=0.43,persistence=0.18"
Status ParseRouting(const Options& options, SyntheticRouting* routing) {
  const std::map<std::string, double*> known = {{"skew", &routing->skew},
                                                {"common", &routing->common},
                                                {"persistence", &routing->persistence}};
  for (const std::string& part : SplitAtCommas(options.Text("routing"))) {
    const size_t equals = part.find('=');
    const auto found = known.find(part.substr(0, equals));
    const double value =
        equals == std::string::npos ? -1 : ParseNumber(part.substr(equals + 1)).value_or(-1);
    const double most = found != known.end() && found->first == "skew" ? 10 : 1;
    if (found == known.end() || !(value >= 0 && value <= most)) {
      return InvalidArgument(
          fmt::format("{}: expected skew=0..10, common=0..1 and persistence=0..1, with commas "
                      "between, found \"{}\"",
                      options.Origin("routing"), part));
    }
    *found->second = value;
  }
  return OkStatus();
}

std::string NameOf(const std::string& path) {
  const std::filesystem::path p = std::filesystem::absolute(path).lexically_normal();
  std::string name = p.filename().string();
  if (name == "config.json" || name.empty()) name = p.parent_path().filename().string();
  for (const char* suffix : {".json", ".config"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - std::string_view(suffix).size());
  }
  return name;
}

struct Routing {
  RoutingTrace trace;
  std::string origin;
};

// Gives drawn routing the habits of a recorded one; says which.
Result<std::string> MakeLike(const std::string& file, SyntheticRouting* synthetic) {
  ASSIGN_OR_RETURN(const LoadedTrace loaded, LoadTrace(file, 0));
  const auto fitted = FitRouting(loaded.routing);
  if (!fitted.ok()) return fitted.status().WithContext(file);
  synthetic->skew = fitted->skew;
  synthetic->common = fitted->common;
  synthetic->persistence = fitted->persistence;
  const RoutingStatistics& recorded = fitted->recorded;
  return fmt::format(
      ", fitted to {}: {:.1f} % of the choices made again, {:.1f} and {:.1f} % of them of the "
      "quarter that a sequence and all sequences use most",
      file, 100 * recorded.repeated, 100 * recorded.sequence_quarter,
      100 * recorded.common_quarter);
}

// `tokens`: of a drawn sequence.
Result<Routing> RoutingFor(const Options& options, const SimModel& model, int64_t tokens) {
  Routing routing;
  const std::vector<int32_t> experts(model.layers.size(), model.experts);
  if (const std::string file = options.Text("trace"); !file.empty()) {
    ASSIGN_OR_RETURN(LoadedTrace loaded, LoadTrace(file, model.expert_bytes));
    if (loaded.routing.experts != experts || loaded.routing.top_k != model.top_k) {
      return InvalidArgument(
          fmt::format("{}: a routing of {} layers, top-{}; {} has {} of {} experts, top-{}", file,
                      loaded.routing.experts.size(), loaded.routing.top_k, model.name,
                      experts.size(), model.experts, model.top_k));
    }
    routing.trace = std::move(loaded.routing);
    routing.origin = file + " (recorded)";
    return routing;
  }
  SyntheticRouting synthetic;
  RETURN_IF_ERROR(ParseRouting(options, &synthetic));
  synthetic.experts = experts;
  synthetic.top_k = model.top_k;
  synthetic.expert_bytes = model.expert_bytes;
  synthetic.sequences = static_cast<int32_t>(
      std::max<int64_t>(options.Integer("batch"), options.Integer("sequences")));
  synthetic.tokens = static_cast<int32_t>(tokens);
  synthetic.seed = static_cast<uint64_t>(options.Integer("seed"));
  std::string like;
  if (const std::string file = options.Text("routing-like"); !file.empty()) {
    if (options.Given("routing")) {
      return InvalidArgument(fmt::format("{} and {} contradict each other: give one of them",
                                         options.Origin("routing"),
                                         options.Origin("routing-like")));
    }
    ASSIGN_OR_RETURN(like, MakeLike(file, &synthetic));
  }
  routing.trace = SynthesizeRouting(synthetic);
  routing.origin =
      fmt::format("synthetic (skew {:.3g}, common {:.3g}, persistence {:.3g}, seed {}{})",
                  synthetic.skew, synthetic.common, synthetic.persistence, synthetic.seed, like);
  return routing;
}

Result<SimulationOptions> SimulationFrom(const Options& options) {
  SimulationOptions simulation;
  simulation.memory_bytes = options.Bytes("memory");
  simulation.batch = static_cast<int32_t>(options.Integer("batch"));
  simulation.seed = static_cast<uint64_t>(options.Integer("seed"));
  simulation.prediction_ns = options.DurationNs("prediction-time");
  ASSIGN_OR_RETURN(simulation.stride, StrideOf(options));
  simulation.arms = SplitAtCommas(options.Text("arms"));
  if (simulation.arms.empty()) simulation.arms = {ArmNames().begin(), ArmNames().end()};
  for (const std::string& arm : simulation.arms) {
    if (ArmMeaning(arm).empty()) {
      return InvalidArgument(fmt::format("{}: unknown arm \"{}\"; there are {}",
                                         options.Origin("arms"), arm, fmt::join(ArmNames(), ", ")));
    }
  }
  ASSIGN_OR_RETURN(simulation.recall, ParseRecall(options));
  return simulation;
}

Result<std::vector<HardwareProfile>> HardwareFrom(const Options& options) {
  HardwareProbeOptions probe;
  probe.threads = static_cast<int32_t>(options.Integer("threads"));
  probe.kernels = options.Text("kernels");
  std::vector<HardwareProfile> hardware;
  for (const std::string& name : SplitAtCommas(options.Text("hardware"))) {
    ASSIGN_OR_RETURN(HardwareProfile profile, LoadHardware(name, probe));
    if (options.Given("link")) {
      const LinkSetting link = options.Link("link");
      profile.link_bytes_per_second = link.bytes_per_second;
      profile.link_latency_ns = link.latency_ns;
      profile.sources += fmt::format("; the link as {} says", options.Origin("link"));
    }
    hardware.push_back(std::move(profile));
  }
  return hardware;
}

// Calls `simulate(model, hardware, routing, forecaster)` for each model on each hardware.
// `tokens`: of a drawn sequence.
template <typename Simulate>
Status ForEachCell(const Options& options, int64_t tokens, Simulate simulate) {
  ASSIGN_OR_RETURN(const std::vector<HardwareProfile> hardware, HardwareFrom(options));
  Precision precision;
  precision.dense_bits = static_cast<double>(options.Integer("dense-bits"));
  precision.expert_bits = static_cast<double>(options.Integer("expert-bits"));
  for (const std::string& path : SplitAtCommas(options.Text("model"))) {
    ASSIGN_OR_RETURN(const ModelSource source, OpenModelOrConfig(path));
    ASSIGN_OR_RETURN(const SimModel model, MakeSimModel(source, NameOf(path), precision));
    ASSIGN_OR_RETURN(const Routing routing, RoutingFor(options, model, tokens));
    std::shared_ptr<const NextUseModel> forecaster;
    if (const std::string file = options.Text("forecaster"); !file.empty()) {
      ASSIGN_OR_RETURN(NextUseFile fitted, ReadNextUse(file));
      if (fitted.model.experts != routing.trace.experts) {
        return InvalidArgument(file + ": fitted to other layers than those of " + model.name);
      }
      forecaster = std::make_shared<const NextUseModel>(std::move(fitted.model));
    }
    for (const HardwareProfile& profile : hardware) {
      RETURN_IF_ERROR(simulate(model, profile, routing, forecaster));
    }
  }
  return OkStatus();
}

struct Outcome {
  std::string text;
  std::string json;
  std::string html;  // where it was asked for
};

Result<Outcome> SimulateLockstep(const Options& options) {
  if (options.Integer("devices") > 1) {
    return InvalidArgument(options.Origin("devices") +
                           ": several devices serve requests that come: give --rate or --arrivals");
  }
  ASSIGN_OR_RETURN(SimulationOptions simulation, SimulationFrom(options));
  std::vector<Cell> cells;
  RETURN_IF_ERROR(ForEachCell(
      options, options.Integer("tokens"),
      [&](const SimModel& model, const HardwareProfile& hardware, const Routing& routing,
          const std::shared_ptr<const NextUseModel>& forecaster) -> Status {
        simulation.forecaster = forecaster;
        ASSIGN_OR_RETURN(Cell cell,
                         SimulateCell(model, hardware, routing.trace, routing.origin, simulation));
        cells.push_back(std::move(cell));
        return OkStatus();
      }));
  Outcome outcome{SimulationTable(cells), SimulationJson(cells), {}};
  if (!options.Text("html").empty()) outcome.html = SimulationHtml(cells);
  return outcome;
}

Result<Outcome> SimulateRequests(const Options& options) {
  if (!options.Text("html").empty()) {
    return InvalidArgument(options.Origin("html") + ": there is none of requests that come");
  }
  JobSimulationOptions job;
  ASSIGN_OR_RETURN(job.each, SimulationFrom(options));
  // What nobody can know when requests come (SimulateJobCell()) is left out of "all".
  if (!options.Given("arms")) std::erase(job.each.arms, "oracle-belady");
  ASSIGN_OR_RETURN(job.arrivals, ArrivalsFrom(options));
  const std::string file = options.Text("arrivals");
  job.arrivals_from = file.empty()
                          ? fmt::format("{} a second at random times", options.Number("rate"))
                          : fmt::format("as recorded in {}", file);
  job.level = ServiceLevelFrom(options);
  job.devices = static_cast<int32_t>(options.Integer("devices"));
  job.kv_bytes = options.Bytes("kv-cache");
  job.prefill_tokens_max = static_cast<int32_t>(options.Integer("prefill-tokens-max"));
  if (options.Given("shared-link")) {
    job.shared_bytes_per_second = options.Link("shared-link").bytes_per_second;
  }
  int64_t longest = 1;
  for (const Arrival& arrival : job.arrivals) {
    longest = std::max(longest, int64_t{arrival.prompt_tokens} + arrival.max_tokens - 1);
  }
  std::vector<JobCell> cells;
  RETURN_IF_ERROR(ForEachCell(
      options, longest,
      [&](const SimModel& model, const HardwareProfile& hardware, const Routing& routing,
          const std::shared_ptr<const NextUseModel>& forecaster) -> Status {
        job.each.forecaster = forecaster;
        ASSIGN_OR_RETURN(JobCell cell,
                         SimulateJobCell(model, hardware, routing.trace, routing.origin, job));
        cells.push_back(std::move(cell));
        return OkStatus();
      }));
  return Outcome{JobSimulationTable(cells), JobSimulationJson(cells), {}};
}

Result<Outcome> Simulate(const Options& options) {
  if (options.Flag("as-recorded")) {
    ASSIGN_OR_RETURN(auto run,
                     SimulateAsRecorded(options.Text("trace"), options.Text("model"), kWorkFolder));
    return Outcome{std::move(run.text), std::move(run.json), {}};
  }
  const bool requests = options.Given("rate") || options.Given("arrivals");
  return requests ? SimulateRequests(options) : SimulateLockstep(options);
}

}  // namespace

int SimulateCommand(const Options& options) {
  const auto outcome = Simulate(options);
  if (!outcome.ok()) return Fail(options, outcome.status());
  if (options.Text("json") != "-") fmt::print("{}", outcome->text);
  Status written = WriteJsonOption(options, outcome->json);
  if (written.ok() && !outcome->html.empty()) {
    written = WriteFileAtomically(options.Text("html"), outcome->html);
  }
  if (!written.ok()) return Fail(options, written);
  return kExitOk;
}

}  // namespace expertflow
