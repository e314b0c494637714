#include "worker/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <utility>

#include "common/token_blocks.h"
#include "device/cpu/cpu_device.h"

namespace expertflow {
namespace {

ModelShape Shape() {
  ModelShape shape;
  shape.layers = 3;
  shape.kv = {2, 4, 0};
  return shape;
}

class KvCacheTest : public ::testing::Test {
 protected:
  KvCacheTest() : device_(CreateCpuDevice({.threads = 1}).value()) {}
  std::unique_ptr<KvCache> MustCreate(int64_t blocks, DType dtype = DType::kF32) {
    const uint64_t bytes = static_cast<uint64_t>(blocks) * KvCache::BlockBytes(Shape(), dtype);
    memory_ = device_->Allocate(bytes).value();
    return KvCache::Create(*device_, Shape(), memory_->data() + bytes, dtype);
  }
  // Calls visit(layer, block, place in it, byte) for every byte of every block.
  template <typename Visit>
  static void EachByte(const KvCache& cache, int64_t blocks, Visit visit) {
    for (const KvLayer& layer : cache.layers()) {
      for (void* base : {layer.keys, layer.values}) {
        for (int64_t block = 0; block < blocks; ++block) {
          auto* bytes = static_cast<uint8_t*>(base) + block * layer.block_stride;
          const int64_t count = layer.block_tokens * layer.token_bytes();
          for (int64_t i = 0; i < count; ++i) visit(layer, block, i, bytes[i]);
        }
      }
    }
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceAllocation> memory_;
};

// Every byte of the memory belongs to one block of the keys or values of one layer: each is marked,
// then read. A block is one piece, the first one at the end.
TEST_F(KvCacheTest, BlocksAreAllOfTheMemoryAndDoNotOverlap) {
  const int64_t blocks = 4;
  const std::pair<DType, int64_t> types[] = {
      {DType::kF32, 4 * 4}, {DType::kBF16, 4 * 2}, {DType::kInt8, 32 + 4}};
  for (const auto& [dtype, head_bytes] : types) {
    const auto cache = MustCreate(blocks, dtype);
    ASSERT_EQ(cache->layers().size(), 3u);
    const auto block_bytes = static_cast<int64_t>(KvCache::BlockBytes(Shape(), dtype));
    EXPECT_EQ(block_bytes, 3 * 2 * kKvBlockTokens * 2 * head_bytes);
    for (const KvLayer& layer : cache->layers()) {
      EXPECT_EQ(layer.dtype, dtype);
      EXPECT_EQ(layer.block_tokens, kKvBlockTokens);
      EXPECT_EQ(layer.block_stride, -block_bytes);
    }
    int64_t bytes = 0;
    uint8_t number = 1;
    const auto next = [&] { return number = static_cast<uint8_t>(number * 5 + 3); };
    EachByte(*cache, blocks, [&](const KvLayer&, int64_t block, int64_t, uint8_t& byte) {
      byte = next();
      const int64_t from_end =
          memory_->data() + blocks * block_bytes - reinterpret_cast<std::byte*>(&byte);
      ASSERT_GT(from_end, block * block_bytes);
      ASSERT_LE(from_end, (block + 1) * block_bytes);
      ++bytes;
    });
    EXPECT_EQ(bytes, blocks * block_bytes);
    number = 1;
    EachByte(*cache, blocks,
             [&](const KvLayer&, int64_t, int64_t, uint8_t byte) { ASSERT_EQ(byte, next()); });
  }
}

// Of the block that is copied to only the first tokens change, in every layer.
TEST_F(KvCacheTest, CopiesTheFirstTokensOfABlock) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) {
    const auto cache = MustCreate(3, dtype);
    // By place and block, the same in all layers.
    const auto mark = [](int64_t block, int64_t i) {
      return static_cast<uint8_t>((i * 3 + block) * 167 >> 3);
    };
    EachByte(*cache, 3, [&](const KvLayer&, int64_t block, int64_t i, uint8_t& byte) {
      byte = mark(block, i);
    });
    ASSERT_TRUE(cache->CopyTokens(2, 0, 5).ok());
    EachByte(*cache, 3, [&](const KvLayer& layer, int64_t block, int64_t i, uint8_t byte) {
      const bool copied = block == 0 && i < 5 * layer.token_bytes();
      ASSERT_EQ(byte, mark(copied ? 2 : block, i)) << block << " " << i;
    });
  }
}

}  // namespace
}  // namespace expertflow
