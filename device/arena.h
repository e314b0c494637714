// Arena: carves a device allocation into named regions by the worker's memory plan (ARCHITECTURE
// 4).
//
// Accounting is exact: bytes_used() is the end of the last region, alignment included, so that a
// plan computed beforehand with ArenaEnd() is the plan that happens. Owned and called by one
// thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "device/device.h"

namespace expertflow {

inline constexpr size_t kArenaAlignment = 256;

// Device memory of one region. Valid as long as its arena.
struct ArenaRegion {
  std::string name;
  std::byte* data = nullptr;
  size_t offset = 0;  // from the start of the arena
  size_t bytes = 0;
};

// Where a region of `bytes` that is carved next would end when `used` bytes are taken; SIZE_MAX
// when that does not fit a size_t. REQUIRES: alignment is a power of two, at most 4096
size_t ArenaEnd(size_t used, size_t bytes, size_t alignment = kArenaAlignment);

class Arena {
 public:
  // REQUIRES: allocation != nullptr
  explicit Arena(std::unique_ptr<DeviceAllocation> allocation);

  // Errors name the region, what it needs and what is left; a name may be used once.
  // REQUIRES: alignment is a power of two, at most 4096
  Result<ArenaRegion> Carve(std::string_view name, size_t bytes,
                            size_t alignment = kArenaAlignment);

  size_t bytes_total() const { return allocation_->bytes(); }
  size_t bytes_used() const { return used_; }
  size_t bytes_free() const { return bytes_total() - used_; }
  const std::vector<ArenaRegion>& regions() const { return regions_; }

 private:
  std::unique_ptr<DeviceAllocation> allocation_;
  size_t used_ = 0;
  std::vector<ArenaRegion> regions_;
};

}  // namespace expertflow
