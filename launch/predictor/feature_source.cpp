#include "launch/predictor/feature_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_model.h"
#include "launch/trace/trace_source.h"
#include "worker/routing_recorder.h"

namespace expertflow {
namespace {

// The token ids of all sequences of a trace, and whether it has features.
class TokenSink final : public TraceSink {
 public:
  Status Begin(const TraceShape& shape) override {
    shape_ = shape;
    return OkStatus();
  }
  Status Sequence(const TraceSequence& /*sequence*/) override {
    tokens_.emplace_back();
    return OkStatus();
  }
  Status Rows(const TraceRows& rows) override {
    RETURN_IF_ERROR(CheckTraceRows(shape_, tokens_.size(), rows));
    for (size_t r = 0; r < rows.size(); ++r) {
      std::vector<int32_t>& sequence = tokens_[rows.sequence[r]];
      complete_ = complete_ && rows.position[r] == sequence.size() && rows.token[r] >= 0;
      sequence.push_back(rows.token[r]);
    }
    return OkStatus();
  }

  const TraceShape& shape() const { return shape_; }
  const std::vector<std::vector<int32_t>>& tokens() const { return tokens_; }
  bool has_features() const { return (shape_.columns & kTraceColumnsKnown) == kTraceColumnsKnown; }
  // Every sequence from its first token on.
  bool complete() const { return complete_; }

 private:
  TraceShape shape_;
  std::vector<std::vector<int32_t>> tokens_;
  bool complete_ = true;
};

// Passes on some of the sequences.
class FilterSink final : public TraceSink {
 public:
  FilterSink(std::span<const uint8_t> wanted, TraceSink& to) : wanted_(wanted), to_(to) {}
  Status Begin(const TraceShape& shape) override { return to_.Begin(shape); }
  Status Sequence(const TraceSequence& sequence) override {
    const bool keep = wanted_[numbers_.size()] != 0;
    numbers_.push_back(keep ? static_cast<int64_t>(kept_++) : -1);
    return keep ? to_.Sequence(sequence) : OkStatus();
  }
  Status Rows(const TraceRows& rows) override {
    TraceRows kept;
    for (size_t r = 0; r < rows.size(); ++r) {
      const int64_t number = numbers_[rows.sequence[r]];
      if (number < 0) continue;
      AppendRow(rows, r, &kept);
      kept.sequence.back() = static_cast<uint32_t>(number);
    }
    return kept.size() == 0 ? OkStatus() : to_.Rows(kept);
  }

 private:
  const std::span<const uint8_t> wanted_;
  TraceSink& to_;
  std::vector<int64_t> numbers_;
  uint32_t kept_ = 0;
};

// Runs the model over the wanted sequences, one after the other.
Status RunModel(const FeatureSourceOptions& options, const TokenSink& trace,
                std::span<const uint8_t> wanted, std::optional<BenchModel>* model, TraceSink& to) {
  if (!trace.complete()) {
    return InvalidArgument(
        "the trace has no hidden states, and not all token ids to compute them from; record it "
        "with --record-features");
  }
  if (!*model) {
    ASSIGN_OR_RETURN(BenchModel opened, BenchModel::Open(options.model, options.work_folder));
    model->emplace(std::move(opened));
  }
  const TraceShape shape =
      RecordedShape((*model)->store(), (*model)->architecture().shape(), true, "{}");
  if (shape.fingerprint != trace.shape().fingerprint) {
    return InvalidArgument(fmt::format(
        "the trace is of another model than {}; give its own with --model", options.model));
  }
  size_t longest = 0;
  for (const std::vector<int32_t>& tokens : trace.tokens()) {
    longest = std::max(longest, tokens.size());
  }
  ASSIGN_OR_RETURN(const auto engine,
                   BenchEngine::Create(**model, {.threads = options.threads,
                                                 .positions = static_cast<int32_t>(longest) + 64}));
  ASSIGN_OR_RETURN(const auto recorder, RoutingRecorder::Create(shape, to));
  engine->engine().RecordTo(recorder.get());
  std::vector<int32_t> ignored;
  for (size_t s = 0; s < trace.tokens().size(); ++s) {
    if (wanted[s] == 0 || trace.tokens()[s].empty()) continue;
    RETURN_IF_ERROR(engine->Start(trace.tokens()[s], 1));
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t ns, engine->RunToEnd(&ignored));
  }
  return recorder->status();
}

// Which of the sequences to take.
Result<std::vector<uint8_t>> Choose(const FeatureSourceOptions& options,
                                    const std::vector<size_t>& lengths) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> list,
                   ParseSequenceList(options.sequences, lengths.size(), "--sequences"));
  size_t tokens = 0;
  for (const int32_t s : list) tokens += lengths[static_cast<size_t>(s)];
  const double share = std::min(1.0, static_cast<double>(options.tokens_max) /
                                         static_cast<double>(std::max<size_t>(tokens, 1)));
  std::vector<uint8_t> wanted(lengths.size(), 0);
  double due = 1 - share;  // the first is always taken
  for (const int32_t s : list) {
    due += share;
    if (due < 1) continue;
    due -= 1;
    wanted[static_cast<size_t>(s)] = 1;
  }
  return wanted;
}

}  // namespace

Result<std::unique_ptr<FeatureTrace>> LoadFeatures(const FeatureSourceOptions& options) {
  std::vector<TokenSink> traces(options.traces.size());
  std::vector<size_t> lengths;
  for (size_t i = 0; i < traces.size(); ++i) {
    RETURN_IF_ERROR(CopyTrace(options.traces[i], &traces[i]).WithContext(options.traces[i]));
    for (const std::vector<int32_t>& tokens : traces[i].tokens()) lengths.push_back(tokens.size());
  }
  ASSIGN_OR_RETURN(const std::vector<uint8_t> wanted, Choose(options, lengths));
  auto features = std::make_unique<FeatureTrace>();
  std::optional<BenchModel> model;
  size_t first = 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    const auto part = std::span(wanted).subspan(first, traces[i].tokens().size());
    first += part.size();
    Status status;
    if (traces[i].has_features()) {
      FilterSink filter(part, *features);
      status = CopyTrace(options.traces[i], &filter);
    } else {
      status = RunModel(options, traces[i], part, &model, *features);
    }
    RETURN_IF_ERROR(status.WithContext(options.traces[i]));
  }
  return features;
}

}  // namespace expertflow
