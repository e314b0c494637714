// The events of a CPU device: where in which stream each was last recorded. Any thread may call;
// a stale handle is a programmer error (CHECK).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "common/status.h"
#include "device/device.h"

namespace expertflow::cpu {

class EventTable {
 public:
  struct Point {
    StreamKind stream = StreamKind::kCompute;
    uint64_t work = 0;    // pieces of work begun on the stream; 0: never recorded
    int64_t link_ns = 0;  // transfer stream: when the emulated link has delivered them
  };

  Result<EventHandle> Create();
  void Destroy(EventHandle event);
  void Record(EventHandle event, Point point);
  Point PointOf(EventHandle event) const;

 private:
  static constexpr size_t kEventsMax = 1 << 16;
  struct Slot {
    uint32_t generation = 0;
    bool live = false;
    Point point;
  };
  // REQUIRES: mutex_ is held
  const Slot& Find(EventHandle event) const;

  mutable std::mutex mutex_;
  // Protected by mutex_.
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace expertflow::cpu
