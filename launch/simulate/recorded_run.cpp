#include "launch/simulate/recorded_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/half.h"
#include "common/trace/trace_reader.h"
#include "worker/cache/slot_classes.h"

namespace expertflow {

int64_t RecordedRun::StepTimes::stall_ns() const {
  int64_t sum = 0;
  for (const LayerTimes& layer : layers) sum += layer.stall_ns;
  return sum;
}

Status RecordedRun::Begin(const TraceShape& shape) {
  shape_ = shape;
  routing_.experts = shape.experts;
  routing_.top_k = shape.top_k;
  routing_.expert_bytes = shape.expert_bytes;
  return OkStatus();
}

Status RecordedRun::Sequence(const TraceSequence& sequence) {
  if (sequences_++ == 0) temperature_ = sequence.temperature;
  return OkStatus();
}

Status RecordedRun::Rows(const TraceRows& rows) {
  RETURN_IF_ERROR(CheckTraceRows(shape_, static_cast<size_t>(sequences_), rows));
  for (size_t r = 0; r < rows.size(); ++r) {
    rows_.push_back({rows.step[r], static_cast<int32_t>(rows.sequence[r]),
                     (rows.flags[r] & kTraceRowPrompt) != 0,
                     (rows.flags[r] & kTraceRowSampled) != 0});
  }
  routing_.chosen.insert(routing_.chosen.end(), rows.experts.begin(), rows.experts.end());
  for (const uint16_t weight : rows.weights) routing_.weights.push_back(FloatFromHalf(weight));
  return OkStatus();
}

// A layer's stalls and copies come before it, a step's layers before the step.
Status RecordedRun::Spans(std::span<const TraceSpan> spans) {
  for (const TraceSpan& span : spans) {
    switch (span.kind) {
      case TraceSpanKind::kStall: layer_.stall_ns += span.end_ns - span.begin_ns; break;
      case TraceSpanKind::kCopyDemand:
      case TraceSpanKind::kCopyPrefetch: ++layer_.chunks; break;
      case TraceSpanKind::kLayer:
        if (step_.layers.empty()) step_first_ns_ = span.begin_ns;
        layer_.before_ns = step_.layers.empty() ? 0 : span.begin_ns - layer_end_ns_;
        layer_.inside_ns = span.end_ns - span.begin_ns;
        layer_end_ns_ = span.end_ns;
        step_.layers.push_back(layer_);
        layer_ = {};
        break;
      case TraceSpanKind::kStep:
        if (step_.layers.size() != shape_.experts.size()) {
          return InvalidArgument("a recorded step has not the times of all its layers");
        }
        step_.total_ns = span.end_ns - span.begin_ns;
        step_.layers.front().before_ns = step_first_ns_ - span.begin_ns;
        step_.end_ns = span.end_ns - layer_end_ns_;
        steps_.push_back(std::move(step_));
        step_ = {};
        break;
    }
  }
  return OkStatus();
}

void RecordedRun::AddMeasured(int32_t slots, bool copy_thread, std::vector<MeasuredLayer>* layers,
                              std::vector<MeasuredStepEnd>* ends) const {
  const Lockstep steps = MakeRecordedSteps(routing_, rows_);
  int32_t held = 0;
  std::vector<int64_t> tokens(static_cast<size_t>(sequences_));
  for (size_t s = 0; s < std::min(steps.steps(), steps_.size()); ++s) {
    MeasuredLayer layer;
    MeasuredStepEnd end;
    end.ns = steps_[s].end_ns;
    for (const Lockstep::Row& row : steps.RowsOf(s)) {
      layer.context += ++tokens[static_cast<size_t>(row.sequence)];
      ++layer.rows;
      end.sampled += row.sampled ? 1 : 0;
    }
    layer.pairs = layer.rows * routing_.top_k;
    for (int32_t l = 0; l < routing_.layers(); ++l) {
      const LayerTimes& times = steps_[s].layers[static_cast<size_t>(l)];
      layer.layer = l;
      layer.experts = static_cast<int32_t>(
          steps.ExpertsOf(s * static_cast<size_t>(routing_.layers()) + static_cast<size_t>(l))
              .size());
      layer.chunks = times.chunks;
      layer.ranked = times.chunks > 0 && held == slots ? slots : 0;
      held = std::min(slots, held + times.chunks);
      layer.runs = times.chunks > 0 && times.chunks < layer.experts ? 2 : 1;
      layer.before_ns = times.before_ns;
      // What waited for a copy thread did not compute; without one, who waits copies.
      layer.inside_ns = times.inside_ns - (copy_thread ? times.stall_ns : 0);
      layers->push_back(layer);
    }
    ends->push_back(end);
  }
}

Result<RecordedRun> LoadRecordedRun(const std::string& path) {
  ASSIGN_OR_RETURN(const TraceReader reader, TraceReader::Open(path));
  RecordedRun run;
  RETURN_IF_ERROR(run.Begin(reader.shape()));
  for (const TraceSequence& sequence : reader.sequences()) {
    RETURN_IF_ERROR(run.Sequence(sequence));
  }
  for (size_t block = 0; block < reader.row_blocks(); ++block) {
    ASSIGN_OR_RETURN(const TraceRows rows, reader.ReadRows(block));
    RETURN_IF_ERROR(run.Rows(rows).WithContext(path));
  }
  for (size_t block = 0; block < reader.span_blocks(); ++block) {
    ASSIGN_OR_RETURN(const std::vector<TraceSpan> spans, reader.ReadSpans(block));
    RETURN_IF_ERROR(run.Spans(spans).WithContext(path));
  }
  if (run.rows().empty()) return InvalidArgument(path + ": no step in it, nothing to simulate");
  return run;
}

int32_t RecordedSettings::slots_in_all() const {
  return std::accumulate(slots.begin(), slots.end(), 0);
}

Status RecordedSettings::TakeBlocks(std::vector<uint64_t> bytes) {
  const std::vector<SlotClass> classes = SlotClassesOf(CountBlocks(bytes));
  if (classes.size() != slots.size()) {
    return InvalidArgument(
        fmt::format("the recorded run had slots of {} sizes, the model's experts need {}",
                    slots.size(), classes.size()));
  }
  block_bytes = std::move(bytes);
  slot_class = SlotClassesOfEach(classes, block_bytes);
  return OkStatus();
}

Result<RecordedSettings> SettingsOf(const TraceShape& shape) {
  const auto config = nlohmann::json::parse(shape.config, nullptr, false);
  if (!config.is_object()) return InvalidArgument("the trace does not say how its run was set up");
  Status status = OkStatus();
  const auto number = [&](const char* key) -> uint64_t {
    const auto found = config.find(key);
    if (found != config.end() && found->is_number_unsigned()) return found->get<uint64_t>();
    if (status.ok()) {
      status =
          InvalidArgument(fmt::format("the trace does not say its run's {}; record it again", key));
    }
    return 0;
  };
  const auto refuse = [&](bool when, const char* what) {
    if (when && status.ok()) {
      status = InvalidArgument(
          fmt::format("the recorded run {}; what can be simulated step by step is recorded with "
                      "--expert-memory, --link, --prefetch off and --forecaster off",
                      what));
    }
  };
  refuse(config.value("device_memory", "") == "host", "computed in place");
  refuse(config.value("prefetch", true), "prefetched: when its copies arrived is not recorded");
  refuse(config.value("forecaster", "none") != "none", "ranked its cache by a forecaster");
  RecordedSettings settings;
  if (config.value("cache_ranking", "") == "recency") settings.ranks = CacheRanks::kRecency;
  settings.slots = {static_cast<int32_t>(number("expert_slots"))};
  if (const auto by_size = config.find("slots_by_size"); by_size != config.end()) {
    settings.slots.clear();
    for (const auto& slots : *by_size) {
      if (!slots.is_number_unsigned())
        return InvalidArgument("slots_by_size is no list of numbers");
      settings.slots.push_back(slots.get<int32_t>());
    }
  }
  settings.stream_buffers = static_cast<int32_t>(number("streaming_buffers"));
  settings.chunk_bytes = number("transfer_chunk_bytes");
  settings.link_bytes_per_second = number("link_bytes_per_second");
  settings.link_latency_ns = static_cast<int64_t>(number("link_latency_ns"));
  settings.copy_thread = config.value("link_copy_thread", false);
  refuse(settings.link_bytes_per_second == 0, "had no link to emulate");
  RETURN_IF_ERROR(status);
  return settings;
}

Result<DeviceSimResult> SimulateRecorded(const RecordedRun& run, const RecordedSettings& settings,
                                         const MeasuredCosts& costs) {
  DeviceSimOptions options;
  options.ranks = settings.ranks;
  options.slots = settings.slots;
  options.stream_buffers = settings.stream_buffers;
  options.expert_bytes = run.shape().expert_bytes;
  options.block_bytes = settings.block_bytes;
  options.slot_class = settings.slot_class;
  options.queue.chunk_bytes = settings.chunk_bytes;
  options.link_bytes_per_second = settings.link_bytes_per_second;
  options.link_latency_ns = settings.link_latency_ns;
  options.chunk_prepare_ns = static_cast<int64_t>(costs.chunk_prepare);
  options.chunk_start_ns = static_cast<int64_t>(costs.chunk_start);
  options.chunk_copy_ns = static_cast<int64_t>(costs.chunk_copy);
  options.arrival_ns = static_cast<int64_t>(costs.arrival);
  options.wake_ns = static_cast<int64_t>(costs.wake);
  options.ranking_ns = static_cast<int64_t>(costs.ranked_slot * settings.slots_in_all());
  const Lockstep steps = MakeRecordedSteps(run.routing(), run.rows());
  return SimulateDevice(run.routing(), steps, MeasuredTimes(costs), std::move(options));
}

}  // namespace expertflow
