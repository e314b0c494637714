#include "worker/cache/shadow_lru.h"

namespace expertflow {

ShadowLru::ShadowLru(size_t experts, int32_t slots)
    : end_(experts), slots_(slots), links_(experts + 1) {
  links_[end_].older = links_[end_].newer = end_;
}

void ShadowLru::Unlink(size_t expert) {
  const Link& link = links_[expert];
  links_[link.older].newer = link.newer;
  links_[link.newer].older = link.older;
}

void ShadowLru::PushNewest(size_t expert) {
  Link& link = links_[expert];
  link.newer = end_;
  link.older = links_[end_].older;
  links_[link.older].newer = expert;
  links_[end_].older = expert;
}

int32_t ShadowLru::OnEvent(std::span<const size_t> experts) {
  ++event_;
  int32_t misses = 0;
  for (const size_t expert : experts) {
    Link& link = links_[expert];
    link.event = event_;
    if (!link.held) {
      ++misses;
      continue;
    }
    Unlink(expert);
    PushNewest(expert);
  }
  for (const size_t expert : experts) {
    Link& link = links_[expert];
    if (link.held) continue;
    if (held_ == slots_) {
      const size_t oldest = links_[end_].newer;
      if (oldest == end_ || links_[oldest].event == event_) continue;
      Unlink(oldest);
      links_[oldest].held = false;
      --held_;
    }
    link.held = true;
    ++held_;
    PushNewest(expert);
  }
  return misses;
}

void ShadowLru::SetSlots(int32_t slots) {
  slots_ = slots;
  for (; held_ > slots_; --held_) {
    const size_t oldest = links_[end_].newer;
    Unlink(oldest);
    links_[oldest].held = false;
  }
}

bool ShadowLru::IsConsistent() const {
  int32_t count = 0;
  for (size_t at = links_[end_].newer; at != end_; at = links_[at].newer) {
    if (!links_[at].held || links_[links_[at].newer].older != at || ++count > held_) return false;
  }
  return count == held_ && held_ <= slots_;
}

}  // namespace expertflow
