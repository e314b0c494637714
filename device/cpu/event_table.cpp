#include "device/cpu/event_table.h"

#include <fmt/core.h>

#include "common/check.h"

namespace expertflow::cpu {

Result<EventHandle> EventTable::Create() {
  const std::lock_guard lock(mutex_);
  uint32_t index = 0;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (slots_.size() < kEventsMax) {
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    return ResourceExhausted(
        fmt::format("all {} events of the device are in use; destroy some first", kEventsMax));
  }
  Slot& slot = slots_[index];
  slot.live = true;
  slot.point = Point();
  return EventHandle{index, slot.generation};
}

void EventTable::Destroy(EventHandle event) {
  const std::lock_guard lock(mutex_);
  Find(event);
  Slot& slot = slots_[event.index];
  slot.live = false;
  ++slot.generation;
  free_.push_back(event.index);
}

void EventTable::Record(EventHandle event, Point point) {
  const std::lock_guard lock(mutex_);
  Find(event);
  slots_[event.index].point = point;
}

EventTable::Point EventTable::PointOf(EventHandle event) const {
  const std::lock_guard lock(mutex_);
  return Find(event).point;
}

const EventTable::Slot& EventTable::Find(EventHandle event) const {
  CHECK(event.index < slots_.size());
  const Slot& slot = slots_[event.index];
  CHECK(slot.live && slot.generation == event.generation);
  return slot;
}

}  // namespace expertflow::cpu
