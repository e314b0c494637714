// The block-paged KV cache: one pool of fixed blocks per worker, a block table per sequence. A
// sequence reserves all blocks that it can ever need when it starts, so it never runs out half-way.
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "device/device.h"
#include "device/ops.h"
#include "model/arch/architecture.h"

namespace expertflow {

class KvCache {
 public:
  // `dtype` as in KvLayer.
  static Result<std::unique_ptr<KvCache>> Create(Device& device, const ModelShape& shape,
                                                 int64_t blocks, DType dtype);

  // One entry a layer, for the forward pass.
  std::span<const KvLayer> layers() const { return layers_; }
  int64_t blocks_total() const { return blocks_total_; }
  int64_t blocks_free() const { return static_cast<int64_t>(free_.size()); }
  static int64_t BlocksFor(int64_t tokens);

  // Block numbers, lowest first; empty when fewer are free. REQUIRES: count >= 1
  std::vector<int32_t> Reserve(int64_t count);
  void Release(std::span<const int32_t> blocks);

 private:
  KvCache() = default;
  std::unique_ptr<DeviceAllocation> memory_;
  std::vector<KvLayer> layers_;
  int64_t blocks_total_ = 0;
  std::vector<int32_t> free_;  // descending, so that the lowest is taken first
};

}  // namespace expertflow
