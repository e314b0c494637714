// A device that passes everything on to another one, but slowly, or not at all: random delays,
// failing copies, a link that hangs. For tests.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "device/device.h"
#include "device/ops.h"

namespace expertflow::testing {

class FaultDevice final : public Device {
 public:
  explicit FaultDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  // Up to this long before and after a copy; each run with a seed draws the same sequence.
  void DelayCopies(int64_t max_ns, uint64_t seed) {
    const std::lock_guard lock(mutex_);
    delay_max_ns_ = max_ns;
    random_.seed(seed);
  }
  // Copies fail with this probability.
  void FailCopies(double probability) { fail_probability_ = probability; }
  // The next copy hangs: its events are not done until Release().
  void Hang() { hanging_ = true; }
  void Release() { hanging_ = false; }
  int copies_failed() const { return copies_failed_; }
  int fills() const { return fills_; }
  size_t bytes_allocated() const { return bytes_allocated_; }  // ever

  const DeviceProperties& properties() const override { return inner_->properties(); }
  Result<std::unique_ptr<DeviceAllocation>> Allocate(size_t bytes) override {
    bytes_allocated_ += bytes;
    return inner_->Allocate(bytes);
  }
  Status CopyToDevice(StreamKind stream, void* dst, const void* src, size_t bytes) override {
    Delay();
    if (Draw() < fail_probability_) {
      ++copies_failed_;
      return Internal("injected failure");
    }
    Status status = inner_->CopyToDevice(stream, dst, src, bytes);
    Delay();
    return status;
  }
  Status CopyToHost(StreamKind stream, void* dst, const void* src, size_t bytes) override {
    return inner_->CopyToHost(stream, dst, src, bytes);
  }
  Status Fill(StreamKind stream, void* dst, uint32_t pattern, size_t bytes) override {
    ++fills_;
    return inner_->Fill(stream, dst, pattern, bytes);
  }
  Result<EventHandle> CreateEvent() override { return inner_->CreateEvent(); }
  void DestroyEvent(EventHandle event) override { inner_->DestroyEvent(event); }
  Status Record(EventHandle event, StreamKind stream) override {
    return inner_->Record(event, stream);
  }
  Status StreamWait(StreamKind stream, EventHandle event) override {
    return inner_->StreamWait(stream, event);
  }
  bool IsDone(EventHandle event) const override { return !hanging_ && inner_->IsDone(event); }
  Status Synchronize(EventHandle event, Deadline deadline) override {
    while (hanging_) {
      if (deadline.Passed()) return DeadlineExceeded("event not done");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return inner_->Synchronize(event, deadline);
  }
  Status SynchronizeStream(StreamKind stream, Deadline deadline) override {
    return inner_->SynchronizeStream(stream, deadline);
  }
  Ops& ops() override { return inner_->ops(); }
  TransferCounters transfer_counters() const override { return inner_->transfer_counters(); }

 private:
  double Draw() {
    const std::lock_guard lock(mutex_);
    return std::uniform_real_distribution<double>(0, 1)(random_);
  }
  void Delay() {
    int64_t ns = 0;
    {
      const std::lock_guard lock(mutex_);
      if (delay_max_ns_ == 0) return;
      ns = std::uniform_int_distribution<int64_t>(0, delay_max_ns_)(random_);
    }
    if (ns % 3 == 0) return;  // some come at once
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
  }

  std::unique_ptr<Device> inner_;
  std::mutex mutex_;
  std::mt19937_64 random_{0};
  int64_t delay_max_ns_ = 0;
  std::atomic<double> fail_probability_{0};
  std::atomic<bool> hanging_{false};
  std::atomic<int> copies_failed_{0};
  std::atomic<int> fills_{0};
  std::atomic<size_t> bytes_allocated_{0};
};

}  // namespace expertflow::testing
