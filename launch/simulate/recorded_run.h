// A recorded run as the simulator takes it: every step as it was, prompts included, and how long it
// took. From a trace file, or straight from an engine (a TraceSink).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/trace/trace_sink.h"
#include "sim/device_simulator.h"
#include "sim/measured_times.h"
#include "sim/routing_trace.h"

namespace expertflow {

class RecordedRun final : public TraceSink {
 public:
  // How long one (step, layer) took.
  struct LayerTimes {
    int64_t before_ns = 0;  // from the layer before, or the step's begin
    int64_t inside_ns = 0;  // stalls included
    int64_t stall_ns = 0;
    int32_t chunks = 0;  // copied
  };
  struct StepTimes {
    int64_t total_ns = 0;
    int64_t end_ns = 0;  // after the last layer
    std::vector<LayerTimes> layers;
    int64_t stall_ns() const;
  };

  Status Begin(const TraceShape& shape) override;
  Status Sequence(const TraceSequence& sequence) override;
  Status Rows(const TraceRows& rows) override;
  Status Spans(std::span<const TraceSpan> spans) override;

  const TraceShape& shape() const { return shape_; }
  float temperature() const { return temperature_; }  // of the first sequence
  // Row i of the routing is rows()[i]; it has no sequences of its own.
  const RoutingTrace& routing() const { return routing_; }
  std::span<const RecordedRow> rows() const { return rows_; }
  // As many as there are steps.
  const std::vector<StepTimes>& steps() const { return steps_; }

  // What FitCosts() takes, of a run with a cache of `slots`. REQUIRES: nothing waited for the link
  void AddMeasured(int32_t slots, bool copy_thread, std::vector<MeasuredLayer>* layers,
                   std::vector<MeasuredStepEnd>* ends) const;

 private:
  TraceShape shape_;
  RoutingTrace routing_;
  std::vector<RecordedRow> rows_;
  int32_t sequences_ = 0;
  float temperature_ = 0;
  std::vector<StepTimes> steps_;
  StepTimes step_;  // so far
  LayerTimes layer_;
  int64_t step_first_ns_ = 0;
  int64_t layer_end_ns_ = 0;
};

// Of a trace file (.eft). Errors name the file.
Result<RecordedRun> LoadRecordedRun(const std::string& path);

// What a run was set to, as far as a simulation without prefetch needs it.
struct RecordedSettings {
  CacheRanks ranks = CacheRanks::kOwn;
  std::vector<int32_t> slots = {0};   // of each class
  std::vector<uint64_t> block_bytes;  // as in DeviceSimOptions; see TakeBlocks()
  std::vector<uint8_t> slot_class;
  int32_t stream_buffers = 2;
  uint64_t chunk_bytes = 1 << 20;
  uint64_t link_bytes_per_second = 0;
  int64_t link_latency_ns = 0;
  bool copy_thread = false;  // LinkProperties

  int32_t slots_in_all() const;
  // What each expert of the run's model takes. An error when their sizes are not those of the
  // slots.
  Status TakeBlocks(std::vector<uint64_t> bytes);
};
// From the configuration that the worker has put into its trace. An error says what is missing, or
// what this run did that cannot be simulated step by step: computing in place, prefetch, a
// forecaster.
Result<RecordedSettings> SettingsOf(const TraceShape& shape);

// The run once more in simulated time. REQUIRES: link_bytes_per_second > 0
Result<DeviceSimResult> SimulateRecorded(const RecordedRun& run, const RecordedSettings& settings,
                                         const MeasuredCosts& costs);

}  // namespace expertflow
