#include "device/arena.h"

#include <fmt/core.h>

#include <cstdint>
#include <utility>

#include "common/check.h"
#include "common/units.h"

namespace expertflow {

size_t ArenaEnd(size_t used, size_t bytes, size_t alignment) {
  CHECK(alignment > 0 && alignment <= 4096 && (alignment & (alignment - 1)) == 0);
  if (used > SIZE_MAX - (alignment - 1)) return SIZE_MAX;
  const size_t offset = (used + alignment - 1) & ~(alignment - 1);
  return bytes > SIZE_MAX - offset ? SIZE_MAX : offset + bytes;
}

Arena::Arena(std::unique_ptr<DeviceAllocation> allocation) : allocation_(std::move(allocation)) {
  CHECK(allocation_ != nullptr);
}

Result<ArenaRegion> Arena::Carve(std::string_view name, size_t bytes, size_t alignment) {
  for (const ArenaRegion& region : regions_) {
    if (region.name == name) {
      return FailedPrecondition(fmt::format("arena region '{}' is carved twice", name));
    }
  }
  const size_t end = ArenaEnd(used_, bytes, alignment);
  if (end > bytes_total()) {
    return ResourceExhausted(fmt::format(
        "arena region '{}' needs {} ({} bytes) but only {} ({} bytes) of {} are left; give the "
        "device more memory or shrink another region",
        name, FormatBytes(bytes), bytes, FormatBytes(bytes_free()), bytes_free(),
        FormatBytes(bytes_total())));
  }
  ArenaRegion region;
  region.name = std::string(name);
  region.offset = end - bytes;
  region.bytes = bytes;
  region.data = allocation_->data() + region.offset;
  used_ = end;
  regions_.push_back(region);
  return region;
}

}  // namespace expertflow
