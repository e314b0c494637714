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

}  // namespace

Status MachineProbe::RunWith(int32_t batch) {
  BenchEngineOptions options;
  options.threads = options_.threads;
  options.kernels = options_.kernels;
  options.resident_percent = options_.resident_percent;
  options.link = kNoWait;
  ASSIGN_OR_RETURN(const auto recorded, RecordedEngine::Create(model_, options));
  for (int32_t i = 0; i < batch; ++i) {
    RETURN_IF_ERROR(recorded->StartRandom(kPromptTokens, kFirstSeed + static_cast<uint32_t>(i),
                                          kNewTokens, options_.temperature));
  }
  std::vector<int32_t> ignored;
  ASSIGN_OR_RETURN([[maybe_unused]] const int64_t ns, recorded->engine().RunToEnd(&ignored));
  ASSIGN_OR_RETURN(const RecordedRun run, recorded->TakeRun());
  ASSIGN_OR_RETURN(const RecordedSettings settings, recorded->settings());
  run.AddMeasured(settings.slots_in_all(), &layers_, &ends_);
  return OkStatus();
}

// Every expert once, so that they come from where a miss finds them.
Status MachineProbe::TimeCopies() {
  CpuDeviceOptions cpu;
  cpu.threads = 1;
  cpu.kernels = options_.kernels;
  cpu.link = kNoWait;
  ASSIGN_OR_RETURN(const auto device, CreateCpuDevice(cpu));
  const StoreBlockSource blocks(model_.store());
  const uint64_t slot_bytes = SlotClassesOfSource(blocks).front().slot_bytes;
  constexpr uint64_t kSlots = 64;
  ASSIGN_OR_RETURN(const auto arena, device->Allocate(kSlots * slot_bytes));
  uint64_t copies = 0;
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
      prepare_ns_.push_back(prepared_ns - begin_ns);
      start_ns_.push_back(NowNs() - prepared_ns);
    }
  }
  return OkStatus();
}

Result<MeasuredCosts> MachineProbe::Costs() const {
  const auto median = [](std::vector<int64_t> samples) {
    std::sort(samples.begin(), samples.end());
    return static_cast<double>(samples[samples.size() / 2]);
  };
  return FitCosts(layers_, ends_, {.prepare = median(prepare_ns_), .start = median(start_ns_)});
}

Status MachineProbe::Run() {
  RETURN_IF_ERROR(TimeCopies());
  for (const int32_t batch : {1, 2, 4}) RETURN_IF_ERROR(RunWith(batch));
  return OkStatus();
}

std::string DescribeCosts(const MeasuredCosts& costs) {
  return fmt::format(
      "a layer {:.1f} us + {:.2f} a row + {:.4f} a token of context; experts {:.1f} + {:.2f} each "
      "+ {:.2f} a row; step {:.1f} + {:.1f} a token drawn; a copy {:.2f} + {:.2f} to start, {:.2f} "
      "to end; "
      "finding victims {:.4f} a slot",
      costs.layer * 1e-3, costs.layer_row * 1e-3, costs.layer_context_token * 1e-3,
      costs.experts * 1e-3, costs.expert * 1e-3, costs.expert_row * 1e-3,
      (costs.step_begin + costs.step_end) * 1e-3, costs.step_end_row * 1e-3,
      costs.chunk_prepare * 1e-3, costs.chunk_start * 1e-3, costs.arrival * 1e-3,
      costs.ranked_slot * 1e-3);
}

}  // namespace expertflow
