// Between how many layers of lead prefetch may choose. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace expertflow {

// Layers of lead that a stride which follows measurements may come to.
inline constexpr int32_t kStrideMost = 8;

struct StrideBounds {
  int32_t least = 1;
  int32_t most = kStrideMost;
  bool fixed() const { return least == most; }
  friend bool operator==(const StrideBounds&, const StrideBounds&) = default;
};

// "auto" (all that may be), "3", or "4-6", from 1 to kStrideMost; nothing for other texts.
std::optional<StrideBounds> ParseStride(std::string_view text);
// What ParseStride() reads.
std::string FormatStride(const StrideBounds& bounds);

}  // namespace expertflow
