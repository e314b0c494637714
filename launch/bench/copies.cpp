#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/units.h"
#include "device/cpu/cpu_device.h"
#include "launch/bench/bench_host.h"
#include "launch/bench/bench_model.h"
#include "launch/bench/bench_setup.h"
#include "worker/transfer_engine.h"

namespace expertflow {
namespace {

constexpr int32_t kRepetitions = 25;
constexpr size_t kBlocksPerLayer = 4;  // what one token misses at most
constexpr size_t kSlots = 8;
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;  // the worker's default
constexpr uint64_t kLinkBytesPerSecond = 4'000'000'000;
constexpr int64_t kLinkLatencyNs = 10'000;
constexpr int64_t kDeadlineNs = 30'000'000'000;
constexpr double kGoalOfMemcpyPercent = 85;
constexpr double kGoalOfLinkPercent = 97;

// A device with its arena of expert slots and the transfer engine over it.
class CopyArm final : private TransferEngine::Listener {
 public:
  static Result<std::unique_ptr<CopyArm>> Create(const LinkProperties& link, size_t slot_bytes) {
    std::unique_ptr<CopyArm> arm(new CopyArm());
    CpuDeviceOptions options;
    options.threads = 1;
    options.link = link;
    ASSIGN_OR_RETURN(arm->device_, CreateCpuDevice(options));
    ASSIGN_OR_RETURN(arm->arena_, arm->device_->Allocate(kSlots * slot_bytes));
    arm->slot_bytes_ = slot_bytes;
    TransferEngineOptions transfer;
    transfer.queue.max_jobs = kBlocksPerLayer;
    transfer.queue.chunk_bytes = kChunkBytes;
    ASSIGN_OR_RETURN(arm->engine_, TransferEngine::Create(*arm->device_, transfer, *arm, nullptr));
    return arm;
  }

  std::byte* NextSlot() { return arena_->data() + slot_bytes_ * (slot_++ % kSlots); }

  // Demands the blocks together and waits for all: what a layer does with its misses.
  Result<int64_t> Serve(const std::vector<ExpertBlock>& blocks) {
    TransferEngine::Lock lock(engine_->mutex());
    const int64_t begin_ns = NowNs();
    waiting_ = blocks.size();
    for (const ExpertBlock& block : blocks) {
      TransferJob job;
      job.request.bytes = block.bytes;
      job.source = reinterpret_cast<const std::byte*>(block.data);
      job.destination = NextSlot();
      job.destination_bytes = slot_bytes_;
      if (!engine_->Enqueue(job).valid()) return Internal("the transfer queue is full");
    }
    engine_->Start(lock, true);
    const Deadline deadline = Deadline::AfterNs(kDeadlineNs);
    while (waiting_ > 0) RETURN_IF_ERROR(engine_->WaitForCopy(lock, deadline));
    RETURN_IF_ERROR(failure_);
    return NowNs() - begin_ns;
  }

  // The device's transfer stream alone: whole blocks, no queue.
  Result<int64_t> Stream(const std::vector<ExpertBlock>& blocks) {
    const int64_t begin_ns = NowNs();
    for (const ExpertBlock& block : blocks) {
      RETURN_IF_ERROR(device_->CopyToDevice(StreamKind::kTransfer, NextSlot(), block.data,
                                            static_cast<size_t>(block.bytes)));
    }
    RETURN_IF_ERROR(
        device_->SynchronizeStream(StreamKind::kTransfer, Deadline::AfterNs(kDeadlineNs)));
    return NowNs() - begin_ns;
  }

  int64_t Memcpy(const std::vector<ExpertBlock>& blocks) {
    const int64_t begin_ns = NowNs();
    for (const ExpertBlock& block : blocks) {
      std::memcpy(NextSlot(), block.data, static_cast<size_t>(block.bytes));
    }
    return NowNs() - begin_ns;
  }

 private:
  CopyArm() = default;
  void OnCopyEnd(const TransferJob& /*job*/, const CopyEnd& end, const Status& status) override {
    if (end.state != CopyState::kDone && failure_.ok()) failure_ = status;
    --waiting_;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceAllocation> arena_;
  size_t slot_bytes_ = 0;
  size_t slot_ = 0;
  size_t waiting_ = 0;  // guarded by the engine's mutex, as is failure_
  Status failure_;
  std::unique_ptr<TransferEngine> engine_;  // ends first: its thread uses the rest
};

// Hands out the model's blocks one after the other, so that none is in a cache.
class BlockRotation {
 public:
  explicit BlockRotation(const BenchModel& model) : model_(model) {}
  std::vector<ExpertBlock> Next(size_t count) {
    const std::vector<ExpertSpec>& experts = model_.architecture().weights().experts;
    std::vector<ExpertBlock> blocks;
    for (size_t i = 0; i < count; ++i) {
      blocks.push_back(model_.store().Expert(experts[next_++ % experts.size()].key));
    }
    return blocks;
  }

 private:
  const BenchModel& model_;
  size_t next_ = 0;
};

double Rate(const std::vector<ExpertBlock>& blocks, int64_t ns) {
  uint64_t bytes = 0;
  for (const ExpertBlock& block : blocks) bytes += block.bytes;
  return static_cast<double>(bytes) / static_cast<double>(ns);  // GB/s
}

std::vector<double> Percent(std::vector<double> ratios) {
  for (double& ratio : ratios) ratio *= 100;
  return ratios;
}

}  // namespace

Result<BenchReport> BenchCopies(const BenchSetup& setup) {
  // Blocks of Qwen1.5-MoE; the vocabulary plays no part.
  ASSIGN_OR_RETURN(const BenchModel model,
                   setup.model.empty()
                       ? BenchModel::Synthesize({.layers = 1, .vocab = 1024}, setup.work_folder)
                       : BenchModel::Open(setup.model, setup.work_folder));
  const auto block_bytes = static_cast<size_t>(model.store().expert_block_bytes());
  ASSIGN_OR_RETURN(const auto plain, CopyArm::Create({}, block_bytes));
  LinkProperties link{.bytes_per_second = kLinkBytesPerSecond, .emulated = true};
  ASSIGN_OR_RETURN(const auto linked, CopyArm::Create(link, block_bytes));
  link.latency_ns = kLinkLatencyNs;
  ASSIGN_OR_RETURN(const auto delayed, CopyArm::Create(link, block_bytes));

  HostWatch host;
  BlockRotation rotation(model);
  const std::span<const uint8_t> memory = model.expert_memory();
  TimeRead(memory, 1);
  plain->Memcpy(rotation.Next(kSlots));
  std::vector<double> copied, streamed, served, one_miss, layer_misses, delayed_misses;
  const int32_t repetitions = setup.Repetitions(kRepetitions);
  constexpr double kLinkRate = static_cast<double>(kLinkBytesPerSecond) * 1e-9;
  for (int32_t repetition = 0; repetition < repetitions; ++repetition) {
    auto blocks = rotation.Next(kBlocksPerLayer);
    copied.push_back(Rate(blocks, plain->Memcpy(blocks)));
    blocks = rotation.Next(kBlocksPerLayer);
    ASSIGN_OR_RETURN(const int64_t stream_ns, plain->Stream(blocks));
    streamed.push_back(Rate(blocks, stream_ns));
    blocks = rotation.Next(kBlocksPerLayer);
    ASSIGN_OR_RETURN(const int64_t serve_ns, plain->Serve(blocks));
    served.push_back(Rate(blocks, serve_ns));
    blocks = rotation.Next(1);
    ASSIGN_OR_RETURN(const int64_t one_ns, linked->Serve(blocks));
    one_miss.push_back(100 * Rate(blocks, one_ns) / kLinkRate);
    blocks = rotation.Next(kBlocksPerLayer);
    ASSIGN_OR_RETURN(const int64_t layer_ns, linked->Serve(blocks));
    layer_misses.push_back(100 * Rate(blocks, layer_ns) / kLinkRate);
    blocks = rotation.Next(kBlocksPerLayer);
    ASSIGN_OR_RETURN(const int64_t delayed_ns, delayed->Serve(blocks));
    delayed_misses.push_back(100 * Rate(blocks, delayed_ns) / kLinkRate);
  }
  const std::vector<double> stream_share = Percent(PairRatios(streamed, copied));
  const std::vector<double> engine_share = Percent(PairRatios(served, copied));

  BenchReport report;
  report.bench = "copies";
  report.title = "expert blocks from the store to an arena of slots, one thread";
  report.machine = host.Describe();
  report.AddSetting("model", model.name());
  report.AddSetting(
      "block", fmt::format("{}, in chunks of {}; {} blocks per sample", FormatBytes(block_bytes),
                           FormatBytes(kChunkBytes), kBlocksPerLayer));
  report.AddSetting("link",
                    fmt::format("emulated, {}", FormatBytesPerSecond(double{kLinkBytesPerSecond})));
  report.AddSetting("samples", "arms take turns");
  report.AddRow("memcpy", "GB/s", copied, "limit");
  report.AddRow("device, transfer stream", "GB/s", streamed);
  report.AddRow("transfer engine", "GB/s", served);
  report.AddRow("stream / memcpy, pair by pair", "%", stream_share);
  report.AddRow("engine / memcpy, pair by pair", "%", engine_share);
  report.AddRow("link in use, one miss", "%", one_miss, "emulated link");
  report.AddRow("link in use, a layer's misses", "%", layer_misses, "emulated link");
  report.AddRow("the same with 10 us latency per chunk", "%", delayed_misses, "emulated link");
  report.AddGoal("expert copies, of memcpy", "%", engine_share, true, kGoalOfMemcpyPercent);
  report.AddGoal("link in use while a miss is served", "%", one_miss, true, kGoalOfLinkPercent);
  return report;
}

}  // namespace expertflow
