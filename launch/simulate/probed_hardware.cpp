#include "launch/simulate/probed_hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "common/clock.h"
#include "device/cpu/cpu_device.h"
#include "device/ops.h"
#include "launch/bench/bench_host.h"

namespace expertflow {
namespace {

constexpr uint64_t kProbeBytesMax = uint64_t{1} << 30;  // no cache holds it
constexpr uint64_t kMemoryShare = 8;
// Of a figure: so long, and no fewer samples.
constexpr int64_t kFigureNs = 100'000'000;
constexpr int kSamplesMin = 3;
constexpr int64_t kDeadlineNs = 30'000'000'000;

constexpr uint64_t kBlockBytes = uint64_t{16} << 20;  // an expert's
constexpr uint64_t kSampleBlocks = 4;                 // of a sample, each to a slot of its own
constexpr size_t kSmallBytes = 64;
// What is over before a clock can tell.
constexpr int kSmallCalls = 256;

// Of the large product: compute-bound by far.
constexpr int32_t kProductRows = 256;
constexpr int32_t kProductInputs = 2048;
constexpr int32_t kProductOutputs = 1024;
constexpr int32_t kTinyProduct = 16;
constexpr uint32_t kTwoOnes = 0x3f803f80;  // bf16

template <typename Sample>  // Result<int64_t>(): nanoseconds
Result<double> ShortestNs(const Sample& sample) {
  int64_t shortest_ns = INT64_MAX;
  const Deadline enough = Deadline::AfterNs(kFigureNs);
  for (int i = 0; i < kSamplesMin || !enough.Passed(); ++i) {
    ASSIGN_OR_RETURN(const int64_t ns, sample());
    shortest_ns = std::min(shortest_ns, ns);
  }
  return static_cast<double>(std::max<int64_t>(shortest_ns, 1));
}

class CpuProbe {
 public:
  static Result<CpuProbe> Create(const HardwareProbeOptions& options) {
    CpuDeviceOptions cpu;
    cpu.threads = options.threads;
    cpu.kernels = options.kernels;
    CpuProbe probe;
    ASSIGN_OR_RETURN(probe.device_, CreateCpuDevice(cpu));
    const uint64_t available = probe.device_->properties().memory_bytes_free;
    const uint64_t memory_bytes =
        std::min(kProbeBytesMax, available / kMemoryShare) / kBlockBytes * kBlockBytes;
    ASSIGN_OR_RETURN(probe.slots_, probe.device_->Allocate(kSampleBlocks * kBlockBytes));
    ASSIGN_OR_RETURN(probe.memory_,
                     probe.device_->Allocate(std::max(memory_bytes, kSampleBlocks * kBlockBytes)));
    return probe;
  }

  const DeviceProperties& properties() const { return device_->properties(); }

  Result<double> Flops() {
    ASSIGN_OR_RETURN(const double ns, ProductNs(kProductOutputs, kProductInputs, kProductRows, 1));
    return 2e9 * kProductRows * kProductInputs * kProductOutputs / ns;
  }

  Result<double> LaunchNs() {
    ASSIGN_OR_RETURN(const double ns, ProductNs(kTinyProduct, kTinyProduct, 1, kSmallCalls));
    return ns / kSmallCalls;
  }

  Result<double> MemoryBytesPerSecond() {
    const std::span<const uint8_t> memory(reinterpret_cast<const uint8_t*>(memory_->data()),
                                          memory_->bytes());
    ASSIGN_OR_RETURN(const double ns, ShortestNs([&]() -> Result<int64_t> {
                       return TimeRead(memory, properties().threads);
                     }));
    return 1e9 * static_cast<double>(memory.size()) / ns;
  }

  // Blocks in turn, so that none is in a cache.
  Result<double> LinkBytesPerSecond() {
    uint64_t next = 0;
    ASSIGN_OR_RETURN(const double ns, ShortestNs([&]() -> Result<int64_t> {
                       const int64_t begin_ns = NowNs();
                       for (uint64_t slot = 0; slot < kSampleBlocks; ++slot) {
                         const uint64_t from = next++ * kBlockBytes % memory_->bytes();
                         RETURN_IF_ERROR(Copy(slot * kBlockBytes, from, kBlockBytes));
                       }
                       RETURN_IF_ERROR(Synchronize());
                       return NowNs() - begin_ns;
                     }));
    return 1e9 * static_cast<double>(kSampleBlocks * kBlockBytes) / ns;
  }

  Result<double> LinkLatencyNs() {
    ASSIGN_OR_RETURN(const double ns, ShortestNs([&]() -> Result<int64_t> {
                       const int64_t begin_ns = NowNs();
                       for (int i = 0; i < kSmallCalls; ++i) {
                         RETURN_IF_ERROR(Copy(0, 0, kSmallBytes));
                         RETURN_IF_ERROR(Synchronize());
                       }
                       return NowNs() - begin_ns;
                     }));
    return ns / kSmallCalls;
  }

 private:
  CpuProbe() = default;

  // The least time of `calls` products of bf16 weights [outputs, inputs] with `rows` rows.
  // REQUIRES: they fit into the slots
  Result<double> ProductNs(int32_t outputs, int32_t inputs, int32_t rows, int calls) {
    const size_t weight_bytes =
        size_t{2} * static_cast<size_t>(outputs) * static_cast<size_t>(inputs);
    const size_t x_bytes = sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(inputs);
    std::byte* const x = slots_->data() + weight_bytes;
    RETURN_IF_ERROR(
        device_->Fill(StreamKind::kCompute, slots_->data(), kTwoOnes, weight_bytes + x_bytes));
    LinearJob job;
    job.weight = {slots_->data(), DType::kBF16, outputs, inputs};
    job.x = reinterpret_cast<const float*>(x);
    job.out = reinterpret_cast<float*>(x + x_bytes);
    return ShortestNs([&]() -> Result<int64_t> {
      const int64_t begin_ns = NowNs();
      for (int i = 0; i < calls; ++i) device_->ops().Linear({&job, 1}, rows);
      RETURN_IF_ERROR(
          device_->SynchronizeStream(StreamKind::kCompute, Deadline::AfterNs(kDeadlineNs)));
      return NowNs() - begin_ns;
    });
  }

  Status Copy(uint64_t to, uint64_t from, size_t bytes) {
    return device_->CopyToDevice(StreamKind::kTransfer, slots_->data() + to, memory_->data() + from,
                                 bytes);
  }
  Status Synchronize() {
    return device_->SynchronizeStream(StreamKind::kTransfer, Deadline::AfterNs(kDeadlineNs));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceAllocation> slots_;   // kSampleBlocks
  std::unique_ptr<DeviceAllocation> memory_;  // whole blocks
};

}  // namespace

Result<HardwareProfile> ProbeHardware(const HardwareProbeOptions& options) {
  ASSIGN_OR_RETURN(CpuProbe probe, CpuProbe::Create(options));
  HardwareProfile hardware;
  hardware.name = kThisMachine;
  hardware.memory_bytes = probe.properties().memory_bytes_free;
  ASSIGN_OR_RETURN(hardware.memory_bytes_per_second, probe.MemoryBytesPerSecond());
  ASSIGN_OR_RETURN(hardware.flops, probe.Flops());
  ASSIGN_OR_RETURN(const double launch_ns, probe.LaunchNs());
  ASSIGN_OR_RETURN(const double link_rate, probe.LinkBytesPerSecond());
  ASSIGN_OR_RETURN(const double latency_ns, probe.LinkLatencyNs());
  hardware.launch_ns = std::llround(launch_ns);
  hardware.link_bytes_per_second = static_cast<uint64_t>(link_rate);
  hardware.link_latency_ns = std::llround(latency_ns);
  hardware.sources = fmt::format("probed now, {} threads, kernels {}", probe.properties().threads,
                                 probe.properties().kernels);
  RETURN_IF_ERROR(CheckHardware(hardware));
  return hardware;
}

}  // namespace expertflow
