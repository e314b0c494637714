#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mapped_file.h"
#include "common/units.h"
#include "launch/commands.h"
#include "launch/predictor/predictor_train.h"
#include "launch/trace/trace_source.h"
#include "predictor/next_use_file.h"
#include "predictor/next_use_fit.h"

namespace expertflow {
namespace {

Status TrainForecaster(const Options& options) {
  const std::vector<std::string>& paths = options.TextList("trace-files");
  if (paths.size() != 1) {
    return InvalidArgument(
        fmt::format("a forecaster (.efn) is fitted to one trace, {} given; trace merge makes one",
                    paths.size()));
  }
  const std::string& path = paths[0];
  const std::string output = options.Text("output");
  ASSIGN_OR_RETURN(const LoadedTrace trace, LoadTrace(path, 0));
  ASSIGN_OR_RETURN(
      const std::vector<int32_t> list,
      ParseSequenceList(options.Text("sequences"), trace.routing.sequences.size(), "--sequences"));
  const size_t width = trace.routing.experts.size() * static_cast<size_t>(trace.routing.top_k);
  NextUseFile file;
  file.identity = ModelIdentity(trace.shape);
  std::vector<FitSequence> sequences;
  for (const int32_t s : list) {
    const RoutedSequence& sequence = trace.routing.sequences[static_cast<size_t>(s)];
    sequences.push_back(
        {{trace.routing.chosen.data() + sequence.first * width, sequence.rows * width},
         {trace.routing.weights.data() + sequence.first * width, sequence.rows * width}});
    file.trained_on.push_back(trace.sequence_hashes[static_cast<size_t>(s)]);
    file.trained_rows += sequence.rows;
  }
  std::sort(file.trained_on.begin(), file.trained_on.end());
  const int64_t begin = NowNs();
  auto model = FitNextUse(trace.routing.experts, trace.routing.top_k, sequences);
  if (!model.ok()) return model.status().WithContext(path);
  file.model = std::move(model).value();
  const int64_t fit_ns = NowNs() - begin;
  const std::string bytes = EncodeNextUse(file);
  RETURN_IF_ERROR(WriteFileAtomically(output, bytes));
  const nlohmann::json json = {{"format", "expertflow-train"},
                               {"version", 1},
                               {"file", output},
                               {"bytes", bytes.size()},
                               {"sequences", sequences.size()},
                               {"tokens", file.trained_rows},
                               {"rank", file.model.rank},
                               {"gain_rank", file.model.gain_rank},
                               {"fit_ns", fit_ns}};
  if (options.Text("json") != "-") {
    fmt::print("{}: {}, fitted to {} tokens of {} sequences in {}\n", output,
               FormatBytes(bytes.size()), file.trained_rows, sequences.size(),
               FormatDurationNs(fit_ns));
  }
  return WriteJsonOption(options, json.dump(2));
}

Status Train(const Options& options) {
  const std::string output = options.Text("output");
  if (output.ends_with(".efp")) return TrainPredictor(options);
  if (output.ends_with(".efn")) return TrainForecaster(options);
  return InvalidArgument(fmt::format(
      "--output {}: what to fit is told by the name: .efp a predictor, .efn a forecaster", output));
}

}  // namespace

int TrainCommand(const Options& options) {
  const Status status = Train(options);
  return status.ok() ? kExitOk : Fail(options, status);
}

}  // namespace expertflow
