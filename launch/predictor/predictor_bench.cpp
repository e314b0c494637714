#include "launch/predictor/predictor_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/mapped_file.h"
#include "common/process.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bundled_model.h"
#include "launch/commands.h"
#include "launch/predictor/feature_source.h"
#include "launch/predictor/reliability_plot.h"
#include "predictor/fitted_to.h"
#include "predictor/hybrid_eval.h"
#include "predictor/hybrid_file.h"
#include "predictor/learning_eval.h"
#include "predictor/parallel_for.h"

namespace expertflow {
namespace {

constexpr std::array<std::pair<size_t, int32_t>, 5> kTimed = {
    {{1, 1},
     {1, 4},
     {1, kPredictDistances},
     {16, 4},
     {16, kPredictDistances}}};  // batch, distances
constexpr size_t kTimedTokens = 1600;
constexpr size_t kTimedRounds = 5;            // what is told is the middle one of each figure
constexpr uint64_t kBinPredictionsMin = 200;  // fewer say nothing about .03

constexpr std::array<std::pair<StateKind, const char*>, kStateKinds> kKinds = {
    {{StateKind::kRouter, "router"}, {StateKind::kExperts, "experts"}}};

struct Cost {
  size_t batch = 0;
  int32_t distances = 0;
  double median_us = 0;
  double p99_us = 0;
  double once_p99_us = 0;  // with what interrupts a single round
};

// What live predictors learn from the trace while it runs, and what it helps.
struct LearningArm {
  const char* name;
  LearningOptions options;
};
constexpr std::array<LearningArm, 4> kLearningArms = {
    {{"as fitted", {.learns = false}},
     {"one worker, learning", {.workers = 1}},
     {"two workers, each for itself", {.workers = 2}},
     {"two workers, sharing", {.workers = 2, .shares = true}}}};
constexpr size_t kLearningTokens = 3;  // times as many as are judged otherwise

struct Judged {
  HybridJudgement judgement;
  std::array<std::array<HybridScore, kPredictDistances>, kLearningArms.size()> learning;
  std::vector<Cost> cost;
  size_t trained_sequences = 0;  // of those judged, that it was fitted to
  size_t sequences = 0;
  std::string trace;
  std::string predictor;
  int32_t top_k = 0;
};

// Arms that predict from what leaves the experts say so: a reader may look at `arm` alone.
std::string ArmName(JudgedArm arm, StateKind kind) {
  return std::string(JudgedArmName(arm)) + (kind == StateKind::kExperts ? ", after experts" : "");
}

template <typename Value>
std::string DistanceTable(const Judged& judged, const Value& value) {
  std::string text = fmt::format("  {:<32}", "distance");
  for (int32_t d = 1; d <= kPredictDistances; ++d) text += fmt::format(" {:>6}", d);
  text += "\n";
  for (const auto& [kind, name] : kKinds) {
    for (size_t a = 0; a < kJudgedArms; ++a) {
      const auto arm = static_cast<JudgedArm>(a);
      text += fmt::format("  {:<32}", ArmName(arm, kind));
      for (int32_t d = 1; d <= kPredictDistances; ++d) {
        text += fmt::format(" {:>6.3f}", value(judged.judgement, arm, kind, d));
      }
      text += "\n";
    }
  }
  return text;
}

std::string LayerTable(const Judged& judged) {
  std::string text = fmt::format("  {:<12}", "source layer");
  for (int32_t d = 1; d <= kPredictDistances; ++d) text += fmt::format(" {:>6}", d);
  text += "\n";
  const auto& scores = judged.judgement.score[static_cast<size_t>(JudgedArm::kForestProbe)]
                                             [static_cast<size_t>(StateKind::kRouter)];
  for (size_t l = 0; l < scores.size(); ++l) {
    text += fmt::format("  {:<12}", l);
    for (const HybridScore& score : scores[l]) {
      text +=
          score.uses == 0 ? fmt::format(" {:>6}", "-") : fmt::format(" {:>6.3f}", score.recall());
    }
    text += "\n";
  }
  return text;
}

// Shen et al., arXiv 2510.26730: measured by its authors on these models, not by this program.
constexpr const char* kPaper =
    "\nfor comparison, as published in arXiv 2510.26730 for larger models; not measured here:\n"
    "  recall by stride   S = 1   S = 2   S = 4   S = 8   without and with the correction\n"
    "  DeepSeek-V2-Lite   92.3    89.1    82.7    73.5    63.4 -> 85.2 %\n"
    "  Qwen1.5-MoE        89.7    86.4    80.1    71.2    65.3 -> 87.3 %\n"
    "  Qwen2-MoE          88.5    84.2    78.9    69.8    60.5 -> 83.3 %\n";

std::string JudgedText(const Judged& judged) {
  const HybridJudgement& judgement = judged.judgement;
  std::string text = fmt::format("{}: {} tokens of {} sequences of {}\n", judged.predictor,
                                 judgement.tokens, judged.sequences, judged.trace);
  if (judged.trained_sequences > 0) {
    text += fmt::format("{} of the {} sequences are ones that it was fitted to\n",
                        judged.trained_sequences, judged.sequences);
  }
  text += fmt::format(
      "\nrecall@{0}: share of the {0} used experts among the {0} predicted, mean over source "
      "layers\n",
      judged.top_k);
  text += DistanceTable(judged, [](const HybridJudgement& j, JudgedArm arm, StateKind kind,
                                   int32_t d) { return j.MeanRecall(arm, kind, d); });
  text += fmt::format("\ncoverage: share of the {} used experts among {} predicted\n", judged.top_k,
                      2 * judged.top_k);
  text += DistanceTable(judged, [](const HybridJudgement& j, JudgedArm arm, StateKind kind,
                                   int32_t d) { return j.MeanCoverage(arm, kind, d); });
  text += "\nrecall of forest + probe by source layer and distance\n" + LayerTable(judged);
  text += "\ncalibration of forest + probe: predicted and observed share of uses\n";
  for (const auto& [kind, name] : kKinds) {
    text += fmt::format("  {:<8}", name);
    for (const ReliabilityBin& bin : judgement.reliability[static_cast<size_t>(
             JudgedArm::kForestProbe)][static_cast<size_t>(kind)]) {
      text += fmt::format("  {:.3f}/{:.3f}", bin.mean_probability(), bin.observed());
    }
    text +=
        fmt::format("\n  {:<8}  largest difference {:.3f}\n", "",
                    judgement.CalibrationError(JudgedArm::kForestProbe, kind, kBinPredictionsMin));
  }
  text += "\nrecall while it runs, forest + probe from what routers see, over all layers\n";
  for (size_t a = 0; a < kLearningArms.size(); ++a) {
    text += fmt::format("  {:<32}", kLearningArms[a].name);
    for (const HybridScore& score : judged.learning[a])
      text += fmt::format(" {:>6.4f}", score.recall());
    text += "\n";
  }
  text += "\ncost of a layer in CPU time of one core, states taken in and layers ahead predicted\n";
  for (const Cost& cost : judged.cost) {
    text += fmt::format(
        "  batch {:>2}, {} layers ahead: median {:.1f} us, p99 {:.1f} us ({:.1f} with "
        "interruptions)\n",
        cost.batch, cost.distances, cost.median_us, cost.p99_us, cost.once_p99_us);
  }
  return text + kPaper;
}

nlohmann::json Row(const Judged& judged, JudgedArm arm, StateKind kind, const char* name,
                   int32_t distance) {
  return {{"arm", ArmName(arm, kind)},
          {"state", name},
          {"distance", distance},
          {"layer", "all"},
          {"recall", judged.judgement.MeanRecall(arm, kind, distance)},
          {"coverage", judged.judgement.MeanCoverage(arm, kind, distance)}};
}

nlohmann::json Json(const Judged& judged) {
  const HybridJudgement& judgement = judged.judgement;
  nlohmann::json json = {{"format", "expertflow-bench-predictor"},
                         {"version", 1},
                         {"trace", judged.trace},
                         {"predictor", judged.predictor},
                         {"tokens", judgement.tokens},
                         {"sequences", judged.sequences},
                         {"trained_sequences", judged.trained_sequences},
                         {"top_k", judged.top_k},
                         {"rows", nlohmann::json::array()},
                         {"calibration", nlohmann::json::array()},
                         {"learning", nlohmann::json::array()},
                         {"cost", nlohmann::json::array()}};
  for (const auto& [kind, name] : kKinds) {
    for (size_t a = 0; a < kJudgedArms; ++a) {
      const auto arm = static_cast<JudgedArm>(a);
      const auto& scores = judgement.score[a][static_cast<size_t>(kind)];
      for (int32_t d = 1; d <= kPredictDistances; ++d) {
        if (scores[0][static_cast<size_t>(d - 1)].uses == 0) continue;
        json["rows"].push_back(Row(judged, arm, kind, name, d));
        for (size_t l = 0; l < scores.size(); ++l) {
          const HybridScore& score = scores[l][static_cast<size_t>(d - 1)];
          if (score.uses == 0) continue;
          json["rows"].push_back({{"arm", ArmName(arm, kind)},
                                  {"state", name},
                                  {"distance", d},
                                  {"layer", l},
                                  {"recall", score.recall()},
                                  {"coverage", score.coverage()},
                                  {"uses", score.uses}});
        }
      }
      const bool predicts = arm >= JudgedArm::kPreGate && arm <= JudgedArm::kForestProbe;
      for (const ReliabilityBin& bin : judgement.reliability[a][static_cast<size_t>(kind)]) {
        if (!predicts) break;
        json["calibration"].push_back({{"arm", ArmName(arm, kind)},
                                       {"state", name},
                                       {"predictions", bin.predictions},
                                       {"predicted", bin.mean_probability()},
                                       {"observed", bin.observed()}});
      }
    }
  }
  for (size_t a = 0; a < kLearningArms.size(); ++a) {
    for (size_t d = 0; d < kPredictDistances; ++d) {
      const HybridScore& score = judged.learning[a][d];
      json["learning"].push_back({{"arm", kLearningArms[a].name},
                                  {"distance", d + 1},
                                  {"recall", score.recall()},
                                  {"uses", score.uses}});
    }
  }
  for (const Cost& cost : judged.cost) {
    json["cost"].push_back({{"batch", cost.batch},
                            {"distances", cost.distances},
                            {"median_us", cost.median_us},
                            {"p99_us", cost.p99_us},
                            {"once_p99_us", cost.once_p99_us}});
  }
  return json;
}

double Quantile(std::vector<double> samples, size_t percent) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() * percent / 100];
}

// Every round does the same, layer by layer. What one takes is the median of the rounds: a timer of
// the machine that fires in one layer in a hundred is not the predictor's.
Cost CostOf(const std::shared_ptr<const HybridModel>& model, const FeatureTrace& trace,
            size_t batch, int32_t distances) {
  std::vector<std::vector<double>> by_layer;  // [layers of the trace][rounds]
  std::vector<double> once_p99;               // by round
  for (size_t round = 0; round < kTimedRounds; ++round) {
    const std::vector<double> ns = TimeHybrid(model, trace, batch, distances, kTimedTokens);
    if (ns.empty()) return {.batch = batch, .distances = distances};
    by_layer.resize(ns.size());
    for (size_t i = 0; i < ns.size(); ++i) by_layer[i].push_back(ns[i]);
    once_p99.push_back(Quantile(ns, 99));
  }
  std::vector<double> typical;
  for (std::vector<double>& rounds : by_layer) typical.push_back(Quantile(std::move(rounds), 50));
  return {.batch = batch,
          .distances = distances,
          .median_us = Quantile(typical, 50) / 1e3,
          .p99_us = Quantile(typical, 99) / 1e3,
          .once_p99_us = Quantile(once_p99, 50) / 1e3};
}

Result<Judged> Run(const Options& options, const std::string& work_folder) {
  for (const char* needed : {"trace", "predictor"}) {
    if (options.Text(needed).empty()) {
      return InvalidArgument(fmt::format("bench predictor: --{} FILE is missing", needed));
    }
  }
  Judged judged;
  judged.trace = options.Text("trace");
  judged.predictor = options.Text("predictor");
  ASSIGN_OR_RETURN(HybridFile file, ReadHybrid(judged.predictor));
  int32_t threads = static_cast<int32_t>(options.Integer("threads"));
  if (threads == 0) threads = CoreCount();
  const auto tokens = static_cast<size_t>(options.Integer("tokens"));
  FeatureSourceOptions source;
  source.traces = {judged.trace};
  source.sequences = options.Text("sequences");
  source.model = options.Text("model").empty() ? BundledModel() : options.Text("model");
  source.work_folder = work_folder;
  source.threads = threads;
  // The state of a sequence is followed over all its tokens, so more are read than judged.
  source.tokens_max = tokens > SIZE_MAX / 10 ? SIZE_MAX : 10 * tokens;
  ASSIGN_OR_RETURN(const auto trace, LoadFeatures(source));
  RETURN_IF_ERROR(CheckFittedTo(file.identity, file.model.experts, ModelIdentity(trace->shape()),
                                trace->shape().experts, judged.predictor));
  judged.top_k = file.model.top_k;
  judged.sequences = trace->sequences();
  for (size_t s = 0; s < trace->sequences(); ++s) {
    judged.trained_sequences +=
        std::binary_search(file.trained_on.begin(), file.trained_on.end(), trace->HashOf(s));
  }
  const auto model = std::make_shared<const HybridModel>(std::move(file.model));
  judged.judgement = JudgeHybrid(model, *trace, {.tokens_max = tokens, .threads = threads});
  ParallelFor(threads, kLearningArms.size(), [&](size_t a) {
    LearningOptions learning = kLearningArms[a].options;
    learning.tokens_max = tokens > SIZE_MAX / kLearningTokens ? SIZE_MAX : kLearningTokens * tokens;
    judged.learning[a] = JudgeLearning(model, *trace, learning);
  });
  for (const auto& [batch, distances] : kTimed) {
    if (batch <= trace->sequences()) {
      judged.cost.push_back(CostOf(model, *trace, batch, distances));
    }
  }
  return judged;
}

}  // namespace

int BenchPredictorCommand(const Options& options) {
  const Result<TemporaryFolder> folder = TemporaryFolder::Create(options.Text("work-folder"));
  if (!folder.ok()) return Fail(options, folder.status());
  const Result<Judged> judged = Run(options, folder->path());
  if (!judged.ok()) return Fail(options, judged.status());
  if (options.Text("json") != "-") fmt::print("{}", JudgedText(*judged));
  Status written = WriteJsonOption(options, Json(*judged).dump(2));
  if (written.ok() && !options.Text("plot").empty()) {
    written = WriteFileAtomically(options.Text("plot"),
                                  ReliabilityPlotSvg(judged->judgement, judged->trace));
  }
  return written.ok() ? kExitOk : Fail(options, written);
}

}  // namespace expertflow
