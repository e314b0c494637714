// Strong integer ids, so that a layer cannot be passed where an expert is meant.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace expertflow {

template <typename Tag>
struct StrongId {
  int32_t value = -1;

  constexpr StrongId() = default;
  constexpr explicit StrongId(int32_t v) : value(v) {}
  constexpr bool valid() const { return value >= 0; }
  // For indexing a vector. REQUIRES: valid()
  constexpr size_t index() const { return static_cast<size_t>(value); }
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

using LayerId = StrongId<struct LayerTag>;    // position in the layer stack, dense layers counted
using ExpertId = StrongId<struct ExpertTag>;  // position within its layer
using WorkerId = StrongId<struct WorkerTag>;
using SlotId = StrongId<struct SlotTag>;  // fixed-size expert slot in a device arena

// A request's sequence. Unique within a job, never reused.
struct SequenceId {
  uint64_t value = 0;
  friend constexpr auto operator<=>(const SequenceId&, const SequenceId&) = default;
};

// One expert of the model.
struct ExpertKey {
  LayerId layer;
  ExpertId expert;
  friend constexpr auto operator<=>(const ExpertKey&, const ExpertKey&) = default;
};

}  // namespace expertflow

template <typename Tag>
struct std::hash<expertflow::StrongId<Tag>> {
  size_t operator()(expertflow::StrongId<Tag> id) const noexcept {
    return std::hash<int32_t>()(id.value);
  }
};
template <>
struct std::hash<expertflow::SequenceId> {
  size_t operator()(expertflow::SequenceId id) const noexcept {
    return std::hash<uint64_t>()(id.value);
  }
};
