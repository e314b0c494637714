#include "device/cpu/cpu_device.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "device/cpu/copy_thread.h"
#include "device/cpu/cpu_ops.h"
#include "device/cpu/event_table.h"
#include "device/cpu/host_memory.h"
#include "device/cpu/link_pacer.h"
#include "device/cpu/stream_progress.h"
#include "device/cpu/thread_pool.h"
#include "device/small_copy.h"

namespace expertflow {
namespace {

using cpu::StreamProgress;

// Returns at `at_ns` or as soon after as it can: sleeps while there is time, spins at the end.
void WaitUntilNs(int64_t at_ns) {
  constexpr int64_t kSpinNs = 60'000;
  const int64_t wake_ns = at_ns - kSpinNs;
  if (NowNs() < wake_ns) {
    const timespec wake{wake_ns / 1'000'000'000, wake_ns % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
  }
  while (NowNs() < at_ns) __builtin_ia32_pause();
}

class CpuDevice : public Device {
 public:
  CpuDevice(DeviceProperties properties, const cpu::KernelTable& kernels, bool integer_products,
            std::unique_ptr<cpu::ThreadPool> pool)
      : properties_(std::move(properties)),
        pool_(std::move(pool)),
        ops_(kernels, integer_products, *pool_, progress_),
        pacer_(properties_.link) {
    if (properties_.link.copy_thread) copy_thread_ = std::make_unique<cpu::CopyThread>(progress_);
  }

  const DeviceProperties& properties() const override { return properties_; }

  Result<std::unique_ptr<DeviceAllocation>> Allocate(size_t bytes) override {
    return cpu::AllocateHostMemory(bytes);
  }

  Status CopyToDevice(StreamKind stream, void* device_dst, const void* host_src,
                      size_t bytes) override {
    if (stream == StreamKind::kTransfer) {
      CopyOverLink(device_dst, host_src, bytes);
    } else {
      const StreamProgress::Work work(progress_, stream);
      std::memcpy(device_dst, host_src, bytes);
    }
    return OkStatus();
  }

  Status CopyToHost(StreamKind stream, void* host_dst, const void* device_src,
                    size_t bytes) override {
    WaitForCopies(stream);
    const StreamProgress::Work work(progress_, stream);
    std::memcpy(host_dst, device_src, bytes);
    return OkStatus();
  }

  Status Fill(StreamKind stream, void* device_dst, uint32_t pattern, size_t bytes) override {
    WaitForCopies(stream);
    const StreamProgress::Work work(progress_, stream);
    CHECK(bytes % sizeof(pattern) == 0);
    std::fill_n(static_cast<uint32_t*>(device_dst), bytes / sizeof(pattern), pattern);
    return OkStatus();
  }

  Result<EventHandle> CreateEvent() override { return events_.Create(); }
  void DestroyEvent(EventHandle event) override { events_.Destroy(event); }

  Status Record(EventHandle event, StreamKind stream) override {
    events_.Record(event, EndOf(stream));
    return OkStatus();
  }

  Status StreamWait(StreamKind, EventHandle event) override {
    // The stream's work runs on the calling thread. The wait has no deadline of its own: what it
    // waits for is a copy or op, which ends by itself.
    return WaitFor(events_.PointOf(event), Deadline::AtNs(INT64_MAX));
  }

  bool IsDone(EventHandle event) const override {
    const cpu::EventTable::Point point = events_.PointOf(event);
    return progress_.IsDone(point.stream, point.work) &&
           (point.link_ns == 0 || NowNs() >= point.link_ns);
  }

  Status Synchronize(EventHandle event, Deadline deadline) override {
    return WaitFor(events_.PointOf(event), deadline);
  }

  Status SynchronizeStream(StreamKind stream, Deadline deadline) override {
    return WaitFor(EndOf(stream), deadline);
  }

  Ops& ops() override { return ops_; }

  TransferCounters transfer_counters() const override {
    TransferCounters counters;
    counters.copies = copies_.load(std::memory_order_relaxed);
    counters.bytes = bytes_.load(std::memory_order_relaxed);
    counters.busy_ns = busy_ns_.load(std::memory_order_relaxed);
    return counters;
  }

 private:
  // The stream's end as it is now.
  cpu::EventTable::Point EndOf(StreamKind stream) const {
    const int64_t link_ns =
        stream == StreamKind::kTransfer ? link_end_ns_.load(std::memory_order_acquire) : 0;
    return {stream, progress_.Begun(stream), link_ns};
  }

  // Work of the transfer stream ends in its order.
  void WaitForCopies(StreamKind stream) const {
    if (stream == StreamKind::kTransfer && copy_thread_ != nullptr) copy_thread_->Drain();
  }

  // Over an emulated link the bytes are written at once and count as arrived when the link has
  // delivered them, as with a copy engine of its own; the call does not wait for that.
  void CopyOverLink(void* device_dst, const void* host_src, size_t bytes) {
    const int64_t begin_ns = NowNs();
    int64_t busy_ns = 0;
    if (properties_.link.emulated) {
      link_end_ns_.store(pacer_.Submit(begin_ns, bytes), std::memory_order_release);
      if (copy_thread_ == nullptr || bytes > kSmallCopyBytes ||
          !copy_thread_->HandOver(device_dst, host_src, bytes, begin_ns)) {
        CopyHere(device_dst, host_src, bytes);
      }
      busy_ns = pacer_.TransferNs(bytes);
    } else {
      CopyHere(device_dst, host_src, bytes);
      busy_ns = NowNs() - begin_ns;
    }
    copies_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    busy_ns_.fetch_add(static_cast<uint64_t>(busy_ns), std::memory_order_relaxed);
  }

  Status WaitFor(cpu::EventTable::Point point, Deadline deadline) const {
    if (progress_.WaitUntilDone(point.stream, point.work, deadline)) {
      WaitUntilNs(std::min(point.link_ns, deadline.at_ns()));
      if (point.link_ns <= deadline.at_ns()) return OkStatus();
    }
    constexpr const char* kNames[] = {"compute", "transfer", "management"};
    return DeadlineExceeded(fmt::format("device {}: work on the {} stream is not done in time",
                                        properties_.name,
                                        kNames[static_cast<size_t>(point.stream)]));
  }

  void CopyHere(void* device_dst, const void* host_src, size_t bytes) {
    WaitForCopies(StreamKind::kTransfer);
    const StreamProgress::Work work(progress_, StreamKind::kTransfer);
    std::memcpy(device_dst, host_src, bytes);
  }

  const DeviceProperties properties_;
  StreamProgress progress_;
  std::unique_ptr<cpu::CopyThread> copy_thread_;  // null: none
  cpu::EventTable events_;
  std::unique_ptr<cpu::ThreadPool> pool_;
  cpu::CpuOps ops_;
  cpu::LinkPacer pacer_;                 // the transfer stream's thread only
  std::atomic<int64_t> link_end_ns_{0};  // when the last copy over an emulated link has arrived
  std::atomic<uint64_t> copies_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> busy_ns_{0};
};

}  // namespace

Result<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options) {
  if (options.link.latency_ns < 0) {
    return InvalidArgument(
        fmt::format("link latency of {} ns: expected 0 or more", options.link.latency_ns));
  }
  if (options.link.bytes_per_second == 0 && options.link.latency_ns > 0) {
    return InvalidArgument("a link latency needs a link rate");
  }
  ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::SelectKernels(options.kernels));
  ASSIGN_OR_RETURN(std::unique_ptr<cpu::ThreadPool> pool, cpu::ThreadPool::Create(options.threads));
  ASSIGN_OR_RETURN(const cpu::HostMemory memory, cpu::QueryHostMemory());
  DeviceProperties properties;
  properties.name = "cpu";
  properties.kernels = kernels->name;
  properties.arithmetic = kernels->arithmetic;
  if (options.int8_activations) properties.arithmetic += ", INT8 activations";
  properties.threads = pool->threads();
  properties.host_pointers = true;
  properties.memory_bytes_total = memory.bytes_total;
  properties.memory_bytes_free = memory.bytes_available;
  properties.link = options.link;
  properties.link.emulated = options.link.bytes_per_second > 0;
  properties.link.asynchronous = properties.link.emulated;
  properties.link.copy_thread = properties.link.emulated && options.link.copy_thread;
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(
      std::move(properties), *kernels, options.int8_activations, std::move(pool)));
}

std::vector<std::string> AvailableKernels() {
  return cpu::AvailableKernelNames();
}

}  // namespace expertflow
