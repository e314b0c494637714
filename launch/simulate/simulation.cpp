#include "launch/simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/units.h"

namespace expertflow {
namespace {

constexpr const char* kFloorArm = "oracle-belady";
// Activations, streaming buffers beside experts, the runtime itself.
constexpr uint64_t kWorkspaceBytes = 512ull << 20;
constexpr int32_t kStreamBuffers = 2;

}  // namespace

std::vector<uint64_t> TrainingUses(const RoutingTrace& trace) {
  const std::vector<int32_t> base = ExpertBases(trace.experts);
  std::vector<uint64_t> uses(static_cast<size_t>(base.back()));
  const size_t training = std::max<size_t>(1, trace.sequences.size() / 2);
  for (size_t s = 0; s < training; ++s) {
    const RoutedSequence& sequence = trace.sequences[s];
    for (size_t row = sequence.first; row < sequence.first + sequence.rows; ++row) {
      for (int32_t l = 0; l < trace.layers(); ++l) {
        for (const uint16_t e : trace.ChosenAt(row, l)) {
          ++uses[static_cast<size_t>(base[static_cast<size_t>(l)]) + e];
        }
      }
    }
  }
  return uses;
}

Result<ExpertRoom> RoomForExperts(const SimModel& model, const HardwareProfile& hardware,
                                  uint64_t memory_bytes, uint64_t kv_bytes) {
  const uint64_t memory =
      memory_bytes == 0 ? hardware.memory_bytes : std::min(memory_bytes, hardware.memory_bytes);
  const uint64_t fixed =
      model.dense_bytes + kv_bytes + kWorkspaceBytes + kStreamBuffers * model.expert_bytes;
  if (fixed > memory) {
    return ResourceExhausted(
        fmt::format("{} on {}: dense weights, KV cache and workspace need {}, there is {}",
                    model.name, hardware.name, FormatBytes(fixed), FormatBytes(memory)));
  }
  const auto experts = static_cast<uint64_t>(model.experts) * model.layers.size();
  ExpertRoom room;
  room.slots = static_cast<int32_t>(std::min(experts, (memory - fixed) / model.expert_bytes));
  room.resident = static_cast<double>(room.slots) / static_cast<double>(experts);
  return room;
}

ArmSetup ArmSetupFor(const RoutingTrace& trace, std::span<const uint64_t> training_uses,
                     const SimulationOptions& options) {
  ArmSetup setup;
  setup.stride = options.stride;
  setup.trace = &trace;
  setup.training_uses = training_uses;
  setup.recall = options.recall;
  setup.forecaster = options.forecaster;
  setup.seed = options.seed;
  setup.prediction_ns = options.prediction_ns;
  return setup;
}

void SetDevice(const HardwareProfile& hardware, int32_t slots, DeviceSimOptions* options) {
  options->slots = {slots};
  options->stream_buffers = kStreamBuffers;
  options->link_bytes_per_second = hardware.link_bytes_per_second;
  options->link_latency_ns = hardware.link_latency_ns;
}

Result<Cell> SimulateCell(const SimModel& model, const HardwareProfile& hardware,
                          const RoutingTrace& trace, const std::string& routing,
                          const SimulationOptions& options) {
  Cell cell;
  cell.model = model;
  cell.hardware = hardware;
  cell.routing = routing;
  size_t longest = 0;
  for (const RoutedSequence& sequence : trace.sequences) longest = std::max(longest, sequence.rows);
  cell.kv_bytes = model.kv_bytes_per_token * longest * static_cast<uint64_t>(options.batch);
  ASSIGN_OR_RETURN(cell.room, RoomForExperts(model, hardware, options.memory_bytes, cell.kv_bytes));
  std::vector<int32_t> sequences(trace.sequences.size());
  std::iota(sequences.begin(), sequences.end(), 0);
  const Lockstep lockstep = MakeLockstep(trace, sequences, options.batch);
  const Roofline roofline(cell.model, cell.hardware);
  const std::vector<uint64_t> uses = TrainingUses(trace);
  ArmSetup setup = ArmSetupFor(trace, uses, options);
  setup.lockstep = &lockstep;

  std::vector<std::string> arms = options.arms;
  const bool floor_asked = std::count(arms.begin(), arms.end(), kFloorArm) > 0;
  if (!floor_asked) arms.push_back(kFloorArm);
  for (const std::string& name : arms) {
    ASSIGN_OR_RETURN(Arm arm, MakeArm(name, setup, model.expert_bytes));
    SetDevice(hardware, cell.room.slots, &arm.options);
    ASSIGN_OR_RETURN(DeviceSimResult result,
                     SimulateDevice(trace, lockstep, roofline, std::move(arm.options)));
    if (name == kFloorArm) {
      cell.floor_bytes = result.bytes_demand + result.bytes_prefetch - result.bytes_wasted;
      const double copy_ns = static_cast<double>(cell.floor_bytes) * 1e9 /
                             static_cast<double>(hardware.link_bytes_per_second);
      cell.floor_stall_ns =
          std::max<int64_t>(0, static_cast<int64_t>(copy_ns) - result.compute_ns());
      if (!floor_asked) continue;
    }
    cell.arms.push_back({name, std::move(result)});
  }
  return cell;
}

}  // namespace expertflow
