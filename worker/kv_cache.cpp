#include "worker/kv_cache.h"

#include <algorithm>
#include <functional>

#include "common/check.h"
#include "worker/memory_plan.h"

namespace expertflow {

Result<std::unique_ptr<KvCache>> KvCache::Create(Device& device, const ModelShape& shape,
                                                 int64_t blocks) {
  const int64_t stride = int64_t{kKvBlockTokens} * shape.kv_heads * shape.head_dim;
  auto cache = std::unique_ptr<KvCache>(new KvCache());
  const uint64_t bytes = uint64_t{2} * shape.layers * blocks * stride * sizeof(float);
  auto memory = device.Allocate(bytes);
  if (!memory.ok()) return memory.status().WithContext("KV cache (--kv-memory)");
  cache->memory_ = std::move(memory).value();
  auto* base = reinterpret_cast<float*>(cache->memory_->data());
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    float* keys = base + int64_t{2} * layer * blocks * stride;
    cache->layers_.push_back(
        {keys, keys + blocks * stride, stride, kKvBlockTokens, shape.kv_heads, shape.head_dim});
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
