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
#include "launch/model_source.h"
#include "launch/option_values.h"
#include "launch/simulate/as_recorded.h"
#include "launch/simulate/hardware_profiles.h"
#include "launch/simulate/sim_model.h"
#include "launch/simulate/simulation.h"
#include "launch/trace/trace_source.h"
#include "predictor/next_use_file.h"
#include "sim/arms.h"
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

// "skew=0.8,common=0.3,persistence=0.3"
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

Result<Routing> RoutingFor(const Options& options, const SimModel& model) {
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
  synthetic.tokens = static_cast<int32_t>(options.Integer("tokens"));
  synthetic.seed = static_cast<uint64_t>(options.Integer("seed"));
  routing.trace = SynthesizeRouting(synthetic);
  routing.origin =
      fmt::format("synthetic (skew {}, common {}, persistence {}, seed {})", synthetic.skew,
                  synthetic.common, synthetic.persistence, synthetic.seed);
  return routing;
}

Result<std::vector<Cell>> Simulate(const Options& options) {
  SimulationOptions simulation;
  simulation.memory_bytes = options.Bytes("memory");
  simulation.batch = static_cast<int32_t>(options.Integer("batch"));
  simulation.seed = static_cast<uint64_t>(options.Integer("seed"));
  simulation.prediction_ns = options.DurationNs("prediction-time");
  simulation.arms = SplitAtCommas(options.Text("arms"));
  if (simulation.arms.empty()) simulation.arms = {ArmNames().begin(), ArmNames().end()};
  for (const std::string& arm : simulation.arms) {
    if (ArmMeaning(arm).empty()) {
      return InvalidArgument(fmt::format("{}: unknown arm \"{}\"; there are {}",
                                         options.Origin("arms"), arm, fmt::join(ArmNames(), ", ")));
    }
  }
  ASSIGN_OR_RETURN(simulation.recall, ParseRecall(options));
  std::vector<HardwareProfile> hardware;
  for (const std::string& name : SplitAtCommas(options.Text("hardware"))) {
    ASSIGN_OR_RETURN(HardwareProfile profile, LoadHardware(name));
    if (options.Given("link")) {
      const LinkSetting link = options.Link("link");
      profile.link_bytes_per_second = link.bytes_per_second;
      profile.link_latency_ns = link.latency_ns;
    }
    hardware.push_back(std::move(profile));
  }
  Precision precision;
  precision.dense_bits = static_cast<double>(options.Integer("dense-bits"));
  precision.expert_bits = static_cast<double>(options.Integer("expert-bits"));
  std::vector<Cell> cells;
  for (const std::string& path : SplitAtCommas(options.Text("model"))) {
    ASSIGN_OR_RETURN(const ModelSource source, OpenModelOrConfig(path));
    ASSIGN_OR_RETURN(const SimModel model, MakeSimModel(source, NameOf(path), precision));
    ASSIGN_OR_RETURN(const Routing routing, RoutingFor(options, model));
    if (const std::string file = options.Text("forecaster"); !file.empty()) {
      ASSIGN_OR_RETURN(NextUseFile fitted, ReadNextUse(file));
      if (fitted.model.experts != routing.trace.experts) {
        return InvalidArgument(file + ": fitted to other layers than those of " + model.name);
      }
      simulation.forecaster = std::make_shared<const NextUseModel>(std::move(fitted.model));
    }
    for (const HardwareProfile& profile : hardware) {
      ASSIGN_OR_RETURN(Cell cell,
                       SimulateCell(model, profile, routing.trace, routing.origin, simulation));
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

}  // namespace

int SimulateCommand(const Options& options) {
  if (options.Flag("as-recorded")) {
    const auto run = SimulateAsRecorded(options.Text("trace"), options.Text("model"), kWorkFolder);
    if (!run.ok()) return Fail(options, run.status());
    if (options.Text("json") != "-") fmt::print("{}", run->text);
    if (const Status written = WriteJsonOption(options, run->json); !written.ok()) {
      return Fail(options, written);
    }
    return kExitOk;
  }
  const auto cells = Simulate(options);
  if (!cells.ok()) return Fail(options, cells.status());
  if (options.Text("json") != "-") fmt::print("{}", SimulationTable(*cells));
  Status written = WriteJsonOption(options, SimulationJson(*cells));
  if (written.ok() && !options.Text("html").empty()) {
    written = WriteFileAtomically(options.Text("html"), SimulationHtml(*cells));
  }
  if (!written.ok()) return Fail(options, written);
  return kExitOk;
}

}  // namespace expertflow
