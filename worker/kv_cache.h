// The memory of the block-paged KV cache: one pool of fixed blocks per worker. Who holds which
// block is decided elsewhere (schedule/kv_blocks.h). One thread.
#pragma once

#include <cstddef>
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
  // Copies the first `tokens` tokens of a block to another one, in all layers, on the compute
  // stream.
  Status CopyTokens(int32_t from, int32_t to, int32_t tokens);

 private:
  explicit KvCache(Device& device) : device_(device) {}

  Device& device_;
  std::unique_ptr<DeviceAllocation> memory_;
  std::vector<KvLayer> layers_;
  std::vector<std::byte> staging_;  // of a copy: tokens of one layer's block
};

}  // namespace expertflow
