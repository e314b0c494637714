#include "worker/kv_cache.h"

#include "common/token_blocks.h"

namespace expertflow {

uint64_t KvCache::BlockBytes(const ModelShape& shape, DType dtype) {
  return static_cast<uint64_t>(shape.layers * kKvBlockTokens * shape.kv.bytes(dtype));
}

std::unique_ptr<KvCache> KvCache::Create(Device& device, const ModelShape& shape, std::byte* end,
                                         DType dtype) {
  const KvShape& kv = shape.kv;
  const int64_t heads_bytes = kKvBlockTokens * kv.heads * KvHeadBytes(dtype, kv.head_dim);
  const auto block_bytes = static_cast<int64_t>(BlockBytes(shape, dtype));
  auto cache = std::unique_ptr<KvCache>(new KvCache(device));
  std::byte* base = end - block_bytes;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    std::byte* keys = base + layer * kKvBlockTokens * kv.bytes(dtype);
    std::byte* values = kv.shared_dim > 0 ? nullptr : keys + heads_bytes;
    cache->layers_.push_back(
        {keys, values, -block_bytes, kKvBlockTokens, kv.heads, kv.head_dim, kv.shared_dim, dtype});
  }
  cache->staging_.resize(static_cast<size_t>(heads_bytes));
  return cache;
}

Status KvCache::CopyTokens(int32_t from, int32_t to, int32_t tokens) {
  for (const KvLayer& layer : layers_) {
    const auto bytes = static_cast<size_t>(tokens * layer.token_bytes());
    for (void* base : {layer.keys, layer.values}) {
      if (base == nullptr) continue;
      auto* blocks = static_cast<std::byte*>(base);
      RETURN_IF_ERROR(device_.CopyToHost(StreamKind::kCompute, staging_.data(),
                                         blocks + from * layer.block_stride, bytes));
      RETURN_IF_ERROR(device_.CopyToDevice(StreamKind::kCompute, blocks + to * layer.block_stride,
                                           staging_.data(), bytes));
    }
  }
  return OkStatus();
}

}  // namespace expertflow
