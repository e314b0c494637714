// What must hold after every call of an expert cache.
#include <algorithm>
#include <string>

#include "worker/cache/expert_cache.h"

namespace expertflow {
namespace {

std::string Name(ExpertKey key) {
  return "layer " + std::to_string(key.layer.value) + " expert " + std::to_string(key.expert.value);
}

}  // namespace

Status ExpertCache::CheckInvariants() const {
  int32_t used = 0;
  int32_t open = 0;
  int32_t ready = 0;
  size_t speculative = 0;
  for (size_t c = 0; c < classes_.size(); ++c) {
    RETURN_IF_ERROR(CheckSlots(classes_[c], options_.slots[c]));
    used += classes_[c].used;
    open += classes_[c].open;
  }
  for (const Slot& slot : slots_) {
    ready += slot.state == SlotState::kReady ? 1 : 0;
    speculative += slot.state == SlotState::kLoading && slot.speculative ? 1 : 0;
  }
  if (used != slots_used_ || ready != slots_ready_) return Internal("slot counts are off");
  if (open != open_slots_) return Internal("the count of open slots is off");
  for (size_t l = 0; l < speculative_loads_.size(); ++l) {
    for (const int32_t s : speculative_loads_[l]) {
      const Slot& slot = slots_[static_cast<size_t>(s)];
      if (slot.state != SlotState::kLoading || !slot.speculative || slot.key.layer.index() != l) {
        return Internal("slot " + std::to_string(s) + ": no speculative load of its layer");
      }
      --speculative;
    }
  }
  if (speculative != 0) return Internal("count of speculative loads is off");
  size_t present = 0;
  for (const Record& record : records_) present += record.slot >= 0 ? 1 : 0;
  if (present != static_cast<size_t>(used)) return Internal("two experts claim one slot");
  if (event_open_) {
    for (const DemandDecision& d : decisions_) {
      if (!d.slot.valid()) continue;
      const Slot& slot = slots_[d.slot.slot.index()];
      if (slot.generation == d.slot.generation && slot.state != SlotState::kFree &&
          (slot.key != d.key || slot.pins != 1)) {
        return Internal(Name(d.key) + " is in use, but not pinned in its slot");
      }
    }
  }
  for (const LayerFirst& own : firsts_) RETURN_IF_ERROR(CheckFirst(own));
  for (size_t r = 0; r < records_.size(); ++r) {
    for (size_t c = 0; c < classes_.size(); ++c) {
      const int32_t s = records_[r].slot;
      const bool may_leave = s >= 0 && MayLeave(slots_[static_cast<size_t>(s)]) &&
                             slots_[static_cast<size_t>(s)].slot_class == c;
      if (classes_[c].leaving.MayLeave(r) != may_leave) {
        return Internal("expert " + std::to_string(r) + ": who may leave is off");
      }
    }
  }
  if (stats_.bytes_wasted > stats_.bytes_prefetch) return Internal("more wasted than prefetched");
  return OkStatus();
}

// Of a class with `count` slots, closed ones included.
Status ExpertCache::CheckSlots(const ClassSlots& own, int32_t count) const {
  int32_t used = 0;
  for (int32_t s = own.first; s < own.first + count; ++s) {
    const Slot& slot = slots_[static_cast<size_t>(s)];
    const std::string where = "slot " + std::to_string(s) + ": ";
    if (&classes_[slot.slot_class] != &own) return Internal(where + "of another class");
    if (slot.state == SlotState::kFree) {
      if (slot.key.layer.valid() || slot.pins != 0 || slot.speculative) {
        return Internal(where + "free, but still has an owner");
      }
      if (s < own.free_hint) return Internal(where + "free, but hidden");
      continue;
    }
    if (s >= own.first + own.open) return Internal(where + "closed, but used");
    ++used;
    if (records_[Index(slot.key)].slot != s) {
      return Internal(where + Name(slot.key) + " does not point back");
    }
    if (!options_.slot_class.empty() && options_.slot_class[slot.record] != slot.slot_class) {
      return Internal(where + Name(slot.key) + " is of another class");
    }
    if (slot.pins < 0) return Internal(where + "negative pins");
    if (slot.pins > (event_open_ ? 1 : 0)) return Internal(where + "pinned outside its event");
    if (slot.pins > 0 && slot.speculative) return Internal(where + "used, but speculative");
  }
  if (used > own.open) return Internal("more slots are used than are open");
  if (used != own.used) return Internal("the count of a class's slots is off");
  if (!own.shadow.IsConsistent()) return Internal("the shadow of LRU is out of order");
  return OkStatus();
}

// What is known of a layer and class is what a look at all slots finds.
Status ExpertCache::CheckFirst(const LayerFirst& own) const {
  const std::string where = "layer " + std::to_string(own.layer.value) + ": ";
  Candidate first = {.slot = -1};
  for (const Slot& slot : slots_) {
    if (slot.key.layer != own.layer || slot.slot_class != own.slot_class || !MayLeave(slot)) {
      continue;
    }
    const Record& record = records_[slot.record];
    if (own.numbered && rank_numbers_[slot.record] !=
                            RankNumber(OwnRank(record, own.layer, record.prediction_ppm))) {
      return Internal(where + "an expert ranks as another number by now");
    }
    const Candidate now =
        CandidateAt(slot.record, RankOf(record, own.layer, record.prediction_ppm));
    if (first.slot < 0 || LeavesLater(first, now)) first = now;
  }
  if (!own.known || (own.event != event_ && !MoveTogether(own.layer))) return OkStatus();
  if (own.nobody != (first.slot < 0)) return Internal(where + "whether one may leave is off");
  if (own.nobody) return OkStatus();
  if (RankNow(own) != first.rank) return Internal(where + "the first to leave has another rank");
  if (own.slot >= 0 && own.slot != first.slot) return Internal(where + "another one leaves first");
  return OkStatus();
}

}  // namespace expertflow
