#include "worker/kv_cache.h"

#include <algorithm>
#include <functional>

#include "common/check.h"
#include "worker/memory_plan.h"

namespace expertflow {

Result<std::unique_ptr<KvCache>> KvCache::Create(Device& device, const ModelShape& shape,
                                                 int64_t blocks, DType dtype) {
  const KvShape& kv = shape.kv;
  const int64_t stride = kKvBlockTokens * kv.heads * KvHeadBytes(dtype, kv.head_dim);
  const int64_t layer_bytes = blocks * kKvBlockTokens * kv.bytes(dtype);
  auto cache = std::unique_ptr<KvCache>(new KvCache());
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
  cache->blocks_total_ = blocks;
  for (int64_t block = blocks; block-- > 0;) cache->free_.push_back(static_cast<int32_t>(block));
  return cache;
}

int64_t KvCache::BlocksFor(int64_t tokens) {
  return (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
}

std::vector<int32_t> KvCache::Reserve(int64_t count) {
  CHECK(count >= 1);
  if (count > blocks_free()) return {};
  std::vector<int32_t> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<size_t>(count));
  return blocks;
}

void KvCache::Release(std::span<const int32_t> blocks) {
  free_.insert(free_.end(), blocks.begin(), blocks.end());
  std::sort(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace expertflow
