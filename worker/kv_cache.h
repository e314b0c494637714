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
  // A block in all layers: it is one piece of memory.
  static uint64_t BlockBytes(const ModelShape& shape, DType dtype);
  // `dtype` as in KvLayer. Blocks lie one before the other below `end`, the first one last: device
  // memory of the caller, of which the cache uses as many blocks as its user does.
  static std::unique_ptr<KvCache> Create(Device& device, const ModelShape& shape, std::byte* end,
                                         DType dtype);

  // One entry a layer, for the forward pass.
  std::span<const KvLayer> layers() const { return layers_; }
  // Copies the first `tokens` tokens of a block to another one, in all layers, on the compute
  // stream.
  Status CopyTokens(int32_t from, int32_t to, int32_t tokens);

 private:
  explicit KvCache(Device& device) : device_(device) {}

  Device& device_;
  std::vector<KvLayer> layers_;
  std::vector<std::byte> staging_;  // of a copy: tokens of one layer's block
};

}  // namespace expertflow
