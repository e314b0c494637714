// A device: memory, streams, events and copies (ARCHITECTURE 4). The worker runs on this interface;
// the CPU device (device/cpu) implements it now, a CUDA device is next, and tests/conformance holds
// both to it.
//
// Memory. A device gives out one arena; the worker divides it by its memory plan (arena.h).
// Pointers into an arena are device pointers: only ops and copies of that device may follow them,
// except where properties().host_pointers says that host and device share one address space.
//
// Streams. Three in-order queues: compute (ops), transfer (expert copies), management (poisoning,
// housekeeping). A stream is driven by one thread at a time; different streams by different
// threads. Work on different streams is unordered unless an event orders it. A call may return
// before its work is done and may as well do it at once (the CPU device does): nobody may rely on
// either.
//
// Events. Record() marks a point of a stream; the event is done when all work enqueued before is
// done. Any thread may query or wait. Waiting for an event that was never recorded returns at once.
// Every host wait has a deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace expertflow {

class Ops;

enum class StreamKind : uint8_t { kCompute = 0, kTransfer = 1, kManagement = 2 };
inline constexpr int kStreamCount = 3;

// Index + generation: a handle that outlived its event is detected, not followed.
struct EventHandle {
  uint32_t index = UINT32_MAX;
  uint32_t generation = 0;
  bool valid() const { return index != UINT32_MAX; }
};

// How fast host-to-device copies on the transfer stream go. Emulated links say so wherever they are
// reported.
struct LinkProperties {
  uint64_t bytes_per_second = 0;  // 0: not limited (as fast as memory)
  int64_t latency_ns = 0;         // until a copy arrives that has left the wire
  bool emulated = false;
  // A copy call returns while the copy is under way, at a cost that does not wait for the link.
  bool asynchronous = false;
  // Emulated: small copies are made by a thread of its own, beside compute.
  bool copy_thread = false;
};

struct DeviceProperties {
  std::string name;        // "cpu"
  std::string kernels;     // instruction set in use: "scalar", "avx2", "avx512", "amx"
  std::string arithmetic;  // how sums are defined: devices that name the same give the same bits
  int32_t threads = 0;     // compute threads
  bool host_pointers = false;  // ops may read host memory (mapped expert blocks) in place
  uint64_t memory_bytes_total = 0;
  uint64_t memory_bytes_free = 0;  // when the device was opened
  LinkProperties link;
};

// Device memory, given back when destroyed.
class DeviceAllocation {
 public:
  virtual ~DeviceAllocation() = default;
  virtual std::byte* data() const = 0;  // 4096-byte aligned
  virtual size_t bytes() const = 0;
};

// What the transfer stream has done so far.
struct TransferCounters {
  uint64_t copies = 0;
  uint64_t bytes = 0;
  uint64_t busy_ns = 0;  // the link was in use (emulated time where the link is emulated)
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceProperties& properties() const = 0;

  // kResourceExhausted with need and have when it does not fit; memory is committed, not promised.
  virtual Result<std::unique_ptr<DeviceAllocation>> Allocate(size_t bytes) = 0;

  // Copies between host and device. Host memory must stay valid until the work is done. A copy on
  // the transfer stream to the device takes the link's time.
  virtual Status CopyToDevice(StreamKind stream, void* device_dst, const void* host_src,
                              size_t bytes) = 0;
  virtual Status CopyToHost(StreamKind stream, void* host_dst, const void* device_src,
                            size_t bytes) = 0;
  // Fills with a repeated 32-bit pattern. REQUIRES: bytes % 4 == 0
  virtual Status Fill(StreamKind stream, void* device_dst, uint32_t pattern, size_t bytes) = 0;

  virtual Result<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  // Re-recording an event moves it to the new point.
  virtual Status Record(EventHandle event, StreamKind stream) = 0;
  // Work enqueued on `stream` from now on starts after the event's last recorded point.
  virtual Status StreamWait(StreamKind stream, EventHandle event) = 0;
  // False as well for a destroyed event's handle: CHECKed, a stale handle is a programmer error.
  virtual bool IsDone(EventHandle event) const = 0;
  // kDeadlineExceeded when the event is not done in time.
  virtual Status Synchronize(EventHandle event, Deadline deadline) = 0;
  virtual Status SynchronizeStream(StreamKind stream, Deadline deadline) = 0;

  // Ops of this device; all run on the compute stream.
  virtual Ops& ops() = 0;

  virtual TransferCounters transfer_counters() const = 0;
};

}  // namespace expertflow
