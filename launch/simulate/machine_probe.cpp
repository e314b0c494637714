#include "launch/simulate/machine_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "common/clock.h"
#include "device/cpu/cpu_device.h"
#include "launch/bench/recorded_engine.h"
#include "worker/cached_executor.h"

namespace expertflow {
namespace {

constexpr int32_t kPromptTokens = 8;
constexpr int32_t kNewTokens = 48;
// Both of them differ from what others ask of the model.
constexpr uint32_t kFirstSeed = 7'000;
// Fast enough for a copy to arrive when it has been started.
constexpr LinkProperties kNoWait{.bytes_per_second = 1'000'000'000'000'000, .emulated = true};
// Slow enough to be waited for.
constexpr LinkProperties kWait{
    .bytes_per_second = 6'000'000'000, .latency_ns = 10'000, .emulated = true};

}  // namespace

Result<MachineProbe::ProbedRun> MachineProbe::RunOnce(int32_t batch,
                                                      const LinkProperties& link) const {
  BenchEngineOptions options;
  options.threads = options_.threads;
  options.kernels = options_.kernels;
  options.resident_percent = options_.resident_percent;
  options.link = link;
  options.copy_thread = options_.copy_thread;
  ASSIGN_OR_RETURN(const auto recorded, RecordedEngine::Create(model_, options));
  for (int32_t i = 0; i < batch; ++i) {
    RETURN_IF_ERROR(recorded->StartRandom(kPromptTokens, kFirstSeed + static_cast<uint32_t>(i),
                                          kNewTokens, options_.temperature));
  }
  std::vector<int32_t> ignored;
  ASSIGN_OR_RETURN([[maybe_unused]] const int64_t ns, recorded->engine().RunToEnd(&ignored));
  ProbedRun probed;
  ASSIGN_OR_RETURN(probed.run, recorded->TakeRun());
  ASSIGN_OR_RETURN(probed.settings, recorded->settings());
  return probed;
}

// Every expert once, so that they come from where a miss finds them.
Status MachineProbe::TimeCopies() {
  CpuDeviceOptions cpu;
  cpu.threads = 1;
  cpu.kernels = options_.kernels;
  cpu.link = kNoWait;
  cpu.link.copy_thread = options_.copy_thread;
  ASSIGN_OR_RETURN(const auto device, CreateCpuDevice(cpu));
  const StoreBlockSource blocks(model_.store());
  const uint64_t slot_bytes = SlotClassesOfSource(blocks).front().slot_bytes;
  constexpr uint64_t kSlots = 64;
  constexpr uint64_t kTogether = 4;  // that a copy thread makes one after the other
  ASSIGN_OR_RETURN(const auto arena, device->Allocate(kSlots * slot_bytes));
  uint64_t copies = 0;
  int64_t together_ns = 0;
  for (int32_t l = 0; l < blocks.layers(); ++l) {
    for (int32_t e = 0; e < blocks.experts(LayerId(l)); ++e) {
      const ExpertBlock block = blocks.Block({LayerId(l), ExpertId(e)});
      std::byte* to = arena->data() + copies++ % kSlots * slot_bytes;
      const int64_t begin_ns = NowNs();
      if (kPoisonFreedSlots) {
        RETURN_IF_ERROR(device->Fill(StreamKind::kManagement, to, 0, slot_bytes / 4 * 4));
      }
      const int64_t prepared_ns = NowNs();
      RETURN_IF_ERROR(device->CopyToDevice(StreamKind::kTransfer, to, block.data, block.bytes));
      const int64_t started_ns = NowNs();
      prepare_ns_.push_back(prepared_ns - begin_ns);
      start_ns_.push_back(started_ns - prepared_ns);
      if (copies % kTogether == 1) together_ns = prepared_ns;
      if (!options_.copy_thread || copies % kTogether != 0) continue;
      RETURN_IF_ERROR(device->SynchronizeStream(StreamKind::kTransfer, Deadline::AfterMs(1'000)));
      copy_ns_.push_back((NowNs() - together_ns) / static_cast<int64_t>(kTogether));
    }
  }
  return OkStatus();
}

Result<MeasuredCosts> MachineProbe::Costs() const {
  const auto median = [](std::vector<int64_t> samples) {
    std::sort(samples.begin(), samples.end());
    return samples.empty() ? 0.0 : static_cast<double>(samples[samples.size() / 2]);
  };
  ASSIGN_OR_RETURN(MeasuredCosts costs, FitCosts(layers_, ends_,
                                                 {.prepare = median(prepare_ns_),
                                                  .start = median(start_ns_),
                                                  .copy = median(copy_ns_)}));
  // Who waits without a copy thread copies meanwhile, which the layers have shown.
  if (options_.copy_thread) {
    ASSIGN_OR_RETURN(costs.wake, WakeNs(costs));
  }
  return costs;
}

Result<double> MachineProbe::WakeNs(const MeasuredCosts& costs) const {
  ASSIGN_OR_RETURN(const DeviceSimResult simulated,
                   SimulateRecorded(waiting_.run, waiting_.settings, costs));
  const double unexplained_ns = waiting_steps_.stall_ns() - static_cast<double>(simulated.stall_ns);
  return simulated.waits == 0
             ? 0
             : std::max(0.0, unexplained_ns / static_cast<double>(simulated.waits));
}

Status MachineProbe::Run() {
  RETURN_IF_ERROR(TimeCopies());
  for (const int32_t batch : {1, 2, 4}) {
    ASSIGN_OR_RETURN(const ProbedRun probed, RunOnce(batch, kNoWait));
    probed.run.AddMeasured(probed.settings.slots_in_all(), options_.copy_thread, &layers_, &ends_);
  }
  if (!options_.copy_thread) return OkStatus();
  ASSIGN_OR_RETURN(ProbedRun probed, RunOnce(1, kWait));
  waiting_steps_.Add(probed.run);
  if (waiting_.run.rows().empty()) waiting_ = std::move(probed);
  return OkStatus();
}

std::string DescribeCosts(const MeasuredCosts& costs) {
  return fmt::format(
      "a layer {:.1f} us + {:.2f} a row + {:.4f} a token of context; experts {:.1f} + {:.2f} each "
      "+ {:.2f} a row; step {:.1f} + {:.1f} a token drawn; a copy {:.2f} + {:.2f} to start, {:.2f} "
      "beside compute, {:.2f} to end, {:.2f} to "
      "wake; "
      "finding victims {:.4f} a slot",
      costs.layer * 1e-3, costs.layer_row * 1e-3, costs.layer_context_token * 1e-3,
      costs.experts * 1e-3, costs.expert * 1e-3, costs.expert_row * 1e-3,
      (costs.step_begin + costs.step_end) * 1e-3, costs.step_end_row * 1e-3,
      costs.chunk_prepare * 1e-3, costs.chunk_start * 1e-3, costs.chunk_copy * 1e-3,
      costs.arrival * 1e-3, costs.wake * 1e-3, costs.ranked_slot * 1e-3);
}

}  // namespace expertflow
