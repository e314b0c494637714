#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mapped_file.h"
#include "common/units.h"
#include "expert_store/store_view.h"
#include "launch/commands.h"
#include "launch/model_source.h"
#include "launch/option_values.h"
#include "launch/trace/replay_plot.h"
#include "launch/trace/trace_source.h"
#include "predictor/fitted_to.h"
#include "predictor/next_use_file.h"
#include "sim/replay.h"
#include "sim/replay_cache.h"

namespace expertflow {
namespace {

// What one expert counts as when the trace does not say what it takes.
constexpr uint64_t kNominalExpertBytes = 1u << 20;

// "15%,.4" -> 0.15, 0.4
Result<std::vector<double>> ParseShares(const std::string& text, const std::string& origin) {
  std::vector<double> shares;
  for (std::string part : SplitAtCommas(text)) {
    const bool percent = part.back() == '%';
    if (percent) part.pop_back();
    const std::optional<double> value = ParseNumber(part);
    const double share = value.value_or(-1) / (percent ? 100 : 1);
    if (!(share >= 0 && share <= 1)) {
      return InvalidArgument(
          fmt::format("{}: expected shares such as 15% or 0.15, with commas between, found \"{}\"",
                      origin, text));
    }
    shares.push_back(share);
  }
  if (shares.empty()) return InvalidArgument(origin + ": no share given");
  return shares;
}

Result<std::vector<int32_t>> ParseBatches(const std::string& text, const std::string& origin) {
  std::vector<int32_t> batches;
  for (const std::string& part : SplitAtCommas(text)) {
    const std::optional<int64_t> value = ParseInteger(part);
    if (!value || *value < 1 || *value > 4096) {
      return InvalidArgument(fmt::format(
          "{}: expected integers from 1 to 4096, with commas between, found \"{}\"", origin, text));
    }
    batches.push_back(static_cast<int32_t>(*value));
  }
  if (batches.empty()) return InvalidArgument(origin + ": no batch size given");
  return batches;
}

struct Replayed {
  ReplayOptions options;
  std::vector<ReplayRow> rows;
  uint64_t expert_bytes = 0;
  bool expert_bytes_known = false;
  double events_per_second = 0;  // all arms
  size_t training_sequences = 0;
  bool judged_on_training = false;
  size_t forecaster_saw = 0;  // judged sequences that the forecaster was fitted to
};

double BytesPerToken(const Replayed& replayed, const ReplayRow& row) {
  if (row.tokens == 0) return 0;
  const double bytes =
      replayed.options.block_bytes.empty()
          ? static_cast<double>(row.misses) * static_cast<double>(replayed.expert_bytes)
          : static_cast<double>(row.bytes_missed);
  return bytes / static_cast<double>(row.tokens);
}

std::string Percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.0f} %", 100 * *share) : std::string("-");
}

std::string Table(const Replayed& replayed) {
  std::string text;
  int32_t batch = 0;
  for (const ReplayRow& row : replayed.rows) {
    if (row.batch != batch) {
      batch = row.batch;
      text += fmt::format("\nbatch {}: {} tokens, {} events\n", batch, row.tokens, row.events);
      text += fmt::format("  {:<16} {:>9} {:>6} {:>12} {:>9} {:>15} {:>12} {:>8} {:>9} {:>8}\n",
                          "policy", "residency", "slots", "slots/demand", "miss rate",
                          "95 % interval", "bytes/token", "from LRU", "per layer", "us/event");
    }
    text += fmt::format(
        "  {:<16} {:>7.1f} % {:>6} {:>12.2f} {:>9.4f} {:>15} {:>12} {:>8} {:>9} {:>8.2f}\n",
        row.policy, 100 * row.residency, row.slots, row.slots_per_demand, row.miss_rate,
        fmt::format("{:.3f} to {:.3f}", row.miss_rate_low, row.miss_rate_high),
        FormatBytes(static_cast<uint64_t>(BytesPerToken(replayed, row))), Percent(row.gap_closed),
        Percent(row.gap_closed_layer), static_cast<double>(row.event_ns_median) / 1e3);
  }
  text += "\nfrom LRU, per layer: share of the way from (per-layer) LRU to Belady with bypass\n";
  text += "us/event: what a (step, layer) takes of this machine, the median\n";
  if (!replayed.expert_bytes_known && replayed.options.block_bytes.empty()) {
    text +=
        fmt::format("bytes: {} an expert is assumed; the trace does not say, --expert-bytes may\n",
                    FormatBytes(replayed.expert_bytes));
  }
  if (replayed.judged_on_training) {
    text += "static binding was chosen on some of the sequences that it is judged on\n";
  }
  if (replayed.forecaster_saw > 0) {
    text += fmt::format("ours: its forecaster was fitted to {} of the {} sequences judged here\n",
                        replayed.forecaster_saw, replayed.options.sequences.size());
  }
  text += fmt::format("{:.2f} million events per second, all arms together\n",
                      replayed.events_per_second / 1e6);
  return text;
}

nlohmann::json Json(const std::string& path, const LoadedTrace& trace, const Replayed& replayed) {
  nlohmann::json json = {{"format", "expertflow-replay"},
                         {"version", 1},
                         {"trace", path},
                         {"model", trace.shape.model},
                         {"truncated", trace.truncated},
                         {"prompt_rows_left_out", trace.prompt_rows},
                         {"experts_per_layer", trace.shape.experts},
                         {"top_k", trace.shape.top_k},
                         {"expert_bytes", replayed.expert_bytes},
                         {"expert_bytes_known", replayed.expert_bytes_known},
                         {"sequences", replayed.options.sequences.size()},
                         {"training_sequences", replayed.training_sequences},
                         {"judged_on_training", replayed.judged_on_training},
                         {"forecaster", replayed.options.forecaster != nullptr},
                         {"forecaster_saw_sequences", replayed.forecaster_saw},
                         {"events_per_second", replayed.events_per_second},
                         {"rows", nlohmann::json::array()}};
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  for (const ReplayRow& row : replayed.rows) {
    json["rows"].push_back({{"policy", row.policy},
                            {"residency", row.residency},
                            {"batch", row.batch},
                            {"slots", row.slots},
                            {"slot_bytes", row.slot_bytes},
                            {"slots_per_demand", row.slots_per_demand},
                            {"events", row.events},
                            {"tokens", row.tokens},
                            {"uses", row.uses},
                            {"misses", row.misses},
                            {"miss_rate", row.miss_rate},
                            {"miss_rate_low", row.miss_rate_low},
                            {"miss_rate_high", row.miss_rate_high},
                            {"bytes_per_token", BytesPerToken(replayed, row)},
                            {"gap_closed", number(row.gap_closed)},
                            {"gap_closed_per_layer", number(row.gap_closed_layer)},
                            {"us_per_event", static_cast<double>(row.event_ns_median) / 1e3},
                            {"us_per_event_p99", static_cast<double>(row.event_ns_p99) / 1e3},
                            {"digest", fmt::format("{:016x}", row.digest)}});
  }
  return json;
}

// What each expert of the model takes, as its store file says.
Result<std::vector<uint64_t>> BlockBytes(const std::string& path, const RoutingTrace& trace) {
  ASSIGN_OR_RETURN(const ModelSource model, OpenModel(path));
  if (model.store_file.empty()) {
    return InvalidArgument(
        fmt::format("--model {}: there is no store file in it; make one with pack", path));
  }
  ASSIGN_OR_RETURN(const StoreView store, StoreView::OpenFile(model.store_file));
  std::vector<int32_t> experts;
  for (int32_t l = 0; l < store.layers(); ++l) {
    if (const int32_t count = store.ExpertsIn(LayerId(l)); count > 0) experts.push_back(count);
  }
  std::vector<uint64_t> bytes = store.ExpertBlockBytes();
  if (experts == trace.experts) return bytes;
  return InvalidArgument(fmt::format(
      "--model {}: has {} experts in {} layers; the trace is of {} in {}", path, bytes.size(),
      experts.size(), ExpertBases(trace.experts).back(), trace.experts.size()));
}

Result<Replayed> RunReplay(const Options& options, const LoadedTrace& trace) {
  Replayed replayed;
  ReplayOptions& replay = replayed.options;
  const size_t count = trace.routing.sequences.size();
  ASSIGN_OR_RETURN(replay.residencies,
                   ParseShares(options.Text("residency"), options.Origin("residency")));
  ASSIGN_OR_RETURN(const std::vector<int32_t> batches,
                   ParseBatches(options.Text("batch"), options.Origin("batch")));
  replay.policies = SplitAtCommas(options.Text("policy"));
  if (replay.policies.empty()) return InvalidArgument("--policy: none given");
  ASSIGN_OR_RETURN(replay.sequences,
                   ParseSequenceList(options.Text("sequences"), count, "--sequences"));
  const std::string training = options.Text("training-sequences");
  ASSIGN_OR_RETURN(replay.training, ParseSequenceList(training.empty() ? "0::2" : training, count,
                                                      "--training-sequences"));
  if (const std::string file = options.Text("forecaster"); !file.empty()) {
    ASSIGN_OR_RETURN(NextUseFile fitted, ReadNextUse(file));
    RETURN_IF_ERROR(CheckFittedTo(fitted.identity, fitted.model.experts, ModelIdentity(trace.shape),
                                  trace.routing.experts, file));
    for (const int32_t s : replay.sequences) {
      replayed.forecaster_saw +=
          std::binary_search(fitted.trained_on.begin(), fitted.trained_on.end(),
                             trace.sequence_hashes[static_cast<size_t>(s)]);
    }
    replay.forecaster = std::make_shared<const NextUseModel>(std::move(fitted.model));
  }
  replay.block_bytes = trace.shape.block_bytes;
  if (const std::string model = options.Text("model"); !model.empty()) {
    ASSIGN_OR_RETURN(replay.block_bytes, BlockBytes(model, trace.routing));
  }
  replay.bootstrap_rounds = static_cast<int32_t>(options.Integer("bootstrap"));
  replay.now_ns = NowNs;
  replayed.training_sequences = replay.training.size();
  const bool has_static = std::count(replay.policies.begin(), replay.policies.end(), "static") > 0;
  replayed.judged_on_training =
      has_static &&
      std::find_first_of(replay.sequences.begin(), replay.sequences.end(), replay.training.begin(),
                         replay.training.end()) != replay.sequences.end();
  replayed.expert_bytes_known = trace.routing.expert_bytes != 0;
  replayed.expert_bytes =
      replayed.expert_bytes_known ? trace.routing.expert_bytes : kNominalExpertBytes;
  const int64_t begin = NowNs();
  uint64_t events = 0;
  for (const int32_t batch : batches) {
    ASSIGN_OR_RETURN(const std::vector<ReplayRow> rows, Replay(trace.routing, replay, batch));
    for (const ReplayRow& row : rows) events += row.events;
    replayed.rows.insert(replayed.rows.end(), rows.begin(), rows.end());
  }
  CloseGaps(replayed.rows);
  replayed.events_per_second = static_cast<double>(events) * 1e9 /
                               static_cast<double>(std::max<int64_t>(NowNs() - begin, 1));
  return replayed;
}

}  // namespace

int ReplayCommand(const Options& options) {
  const std::string path = options.Text("trace-file");
  const auto trace = LoadTrace(path, options.Bytes("expert-bytes"));
  if (!trace.ok()) return Fail(options, trace.status());
  const auto replayed = RunReplay(options, *trace);
  if (!replayed.ok()) return Fail(options, replayed.status());
  if (trace->truncated) {
    fmt::print(stderr, "{}: its end is missing; the last rows may be lost\n", path);
  }
  if (options.Text("json") != "-") fmt::print("{}", Table(*replayed));
  Status written = WriteJsonOption(options, Json(path, *trace, *replayed).dump(2));
  if (written.ok() && !options.Text("plot").empty()) {
    written = WriteFileAtomically(options.Text("plot"), ReplayPlotSvg(replayed->rows, path));
  }
  if (!written.ok()) return Fail(options, written);
  return kExitOk;
}

}  // namespace expertflow
