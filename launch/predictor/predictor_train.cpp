#include "launch/predictor/predictor_train.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/mapped_file.h"
#include "common/process.h"
#include "common/units.h"
#include "launch/bench/bench_model.h"
#include "launch/bundled_model.h"
#include "launch/commands.h"
#include "launch/predictor/feature_source.h"
#include "launch/progress.h"
#include "predictor/hybrid_file.h"
#include "predictor/hybrid_fit.h"

namespace expertflow {

Status TrainPredictor(const Options& options) {
  const std::string output = options.Text("output");
  ASSIGN_OR_RETURN(const TemporaryFolder folder,
                   TemporaryFolder::Create(options.Text("work-folder")));
  HybridFitOptions fit;
  fit.threads = static_cast<int32_t>(options.Integer("threads"));
  if (fit.threads == 0) fit.threads = CoreCount();
  fit.seed = static_cast<uint64_t>(options.Integer("seed"));
  FeatureSourceOptions source;
  source.traces = options.TextList("trace-files");
  source.sequences = options.Text("sequences");
  source.model = options.Text("model").empty() ? BundledModel() : options.Text("model");
  source.work_folder = folder.path();
  source.threads = fit.threads;
  source.tokens_max = static_cast<size_t>(options.Integer("tokens"));

  ProgressLine progress(options.Flag("verbose"));
  const int64_t begin = NowNs();
  progress.Show("features");
  ASSIGN_OR_RETURN(const auto trace, LoadFeatures(source));
  const int64_t load_ns = NowNs() - begin;
  HybridFitReport report;
  HybridFile file;
  ASSIGN_OR_RETURN(file.model, FitHybrid(*trace, fit, &report,
                                         [&](const std::string& what) { progress.Show(what); }));
  progress.Clear();
  const int64_t fit_ns = NowNs() - begin - load_ns;
  file.identity = ModelIdentity(trace->shape());
  file.trained_tokens = trace->tokens();
  for (size_t s = 0; s < trace->sequences(); ++s) file.trained_on.push_back(trace->HashOf(s));
  std::sort(file.trained_on.begin(), file.trained_on.end());
  const std::string bytes = EncodeHybrid(file);
  RETURN_IF_ERROR(WriteFileAtomically(output, bytes));
  if (options.Text("json") != "-") {
    fmt::print(
        "{}: {}, fitted to {} tokens of {} sequences in {} ({} to load them): maps to {} tokens, "
        "forests to {} samples of {} tokens\n",
        output, FormatBytes(bytes.size()), trace->tokens(), trace->sequences(),
        FormatDurationNs(fit_ns), FormatDurationNs(load_ns), report.linear_tokens,
        report.forest_samples, report.forest_tokens);
  }
  const nlohmann::json json = {{"format", "expertflow-train-predictor"},
                               {"version", 1},
                               {"file", output},
                               {"bytes", bytes.size()},
                               {"sequences", trace->sequences()},
                               {"tokens", trace->tokens()},
                               {"map_tokens", report.linear_tokens},
                               {"forest_tokens", report.forest_tokens},
                               {"forest_samples", report.forest_samples},
                               {"load_ns", load_ns},
                               {"fit_ns", fit_ns}};
  return WriteJsonOption(options, json.dump(2));
}

}  // namespace expertflow
