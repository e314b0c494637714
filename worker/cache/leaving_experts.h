// Which experts of a cache may leave it, in a form in which the one that is expected last is found
// many at a time. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace expertflow {

class LeavingExperts {
 public:
  // None may leave.
  explicit LeavingExperts(size_t experts) : mask_(experts) {}

  void Set(size_t expert, bool may_leave) { mask_[expert] = may_leave ? UINT32_MAX : 0; }
  bool MayLeave(size_t expert) const { return mask_[expert] != 0; }
  // Of `count` experts from `first` on, those that may leave, ascending. Valid until the next call.
  std::span<const size_t> Those(size_t first, size_t count);
  // The largest distance of `count` experts from `first` on, of those that may leave; 0: nobody
  // may, or it is 0. distance[experts]
  uint32_t Farthest(std::span<const uint32_t> distance, size_t first, size_t count) const;

 private:
  std::vector<uint32_t> mask_;  // all bits or none
  std::vector<size_t> those_;
};

}  // namespace expertflow
