#include "worker/kv_cache.h"

#include "common/token_blocks.h"

namespace expertflow {

Result<std::unique_ptr<KvCache>> KvCache::Create(Device& device, const ModelShape& shape,
                                                 int64_t blocks, DType dtype) {
  const KvShape& kv = shape.kv;
  const int64_t stride = kKvBlockTokens * kv.heads * KvHeadBytes(dtype, kv.head_dim);
  const int64_t layer_bytes = blocks * kKvBlockTokens * kv.bytes(dtype);
  auto cache = std::unique_ptr<KvCache>(new KvCache(device));
  const auto bytes = static_cast<uint64_t>(shape.layers * layer_bytes);
  auto memory = device.Allocate(bytes);
  if (!memory.ok()) return memory.status().WithContext("KV cache (--kv-memory)");
  cache->memory_ = std::move(memory).value();
  auto* base = static_cast<std::byte*>(cache->memory_->data());
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    std::byte* keys = base + layer * layer_bytes;
    std::byte* values = kv.shared_dim > 0 ? nullptr : keys + blocks * stride;
    cache->layers_.push_back(
        {keys, values, stride, kKvBlockTokens, kv.heads, kv.head_dim, kv.shared_dim, dtype});
  }
  cache->staging_.resize(static_cast<size_t>(stride));
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
