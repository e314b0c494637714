// The device buffers of a forward pass: named, counted first, then allocated as one piece.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "device/device.h"

namespace expertflow {

class Workspace {
 public:
  // A buffer of `elements` 4-byte elements. REQUIRES: not allocated yet
  void Add(std::string name, int64_t elements);
  // What Allocate() takes from the device.
  uint64_t bytes() const { return bytes_; }

  Status Allocate(Device& device);
  // REQUIRES: allocated, and `name` was added
  float* Floats(std::string_view name) const { return static_cast<float*>(Find(name)); }
  int32_t* Ints(std::string_view name) const { return static_cast<int32_t*>(Find(name)); }

 private:
  struct Buffer {
    std::string name;
    uint64_t offset = 0;
  };
  void* Find(std::string_view name) const;

  std::vector<Buffer> buffers_;
  uint64_t bytes_ = 0;
  std::unique_ptr<DeviceAllocation> memory_;
};

}  // namespace expertflow
