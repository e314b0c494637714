#include "worker/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <utility>

#include "device/cpu/cpu_device.h"
#include "worker/memory_plan.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
    auto cache = KvCache::Create(*device_, Shape(), blocks, dtype);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    return std::move(cache).value();
  }
  std::unique_ptr<Device> device_;
};

TEST_F(KvCacheTest, GivesTheLowestBlocksFirst) {
  const auto cache = MustCreate(5);
  EXPECT_EQ(cache->blocks_total(), 5);
  EXPECT_THAT(cache->Reserve(2), ElementsAre(0, 1));
  EXPECT_THAT(cache->Reserve(2), ElementsAre(2, 3));
  EXPECT_EQ(cache->blocks_free(), 1);
  cache->Release(std::vector<int32_t>{1, 0});
  EXPECT_EQ(cache->blocks_free(), 3);
  EXPECT_THAT(cache->Reserve(1), ElementsAre(0));
  cache->Release(std::vector<int32_t>{2, 3});
  EXPECT_THAT(cache->Reserve(3), ElementsAre(1, 2, 3));
  cache->Release({});
  EXPECT_EQ(cache->blocks_free(), 1);
}

TEST_F(KvCacheTest, GivesNothingRatherThanTooFew) {
  const auto cache = MustCreate(3);
  EXPECT_THAT(cache->Reserve(4), IsEmpty());
  EXPECT_EQ(cache->blocks_free(), 3);
  EXPECT_THAT(cache->Reserve(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(cache->Reserve(1), IsEmpty());
  cache->Release(std::vector<int32_t>{1});
  EXPECT_THAT(cache->Reserve(2), IsEmpty());
  EXPECT_THAT(cache->Reserve(1), ElementsAre(1));
}

TEST_F(KvCacheTest, BlocksForTokens) {
  EXPECT_EQ(KvCache::BlocksFor(0), 0);
  EXPECT_EQ(KvCache::BlocksFor(1), 1);
  EXPECT_EQ(KvCache::BlocksFor(kKvBlockTokens), 1);
  EXPECT_EQ(KvCache::BlocksFor(kKvBlockTokens + 1), 2);
  EXPECT_EQ(KvCache::BlocksFor(int64_t{1} << 40), (int64_t{1} << 40) / kKvBlockTokens);
}

// Every byte belongs to one block of the keys or values of one layer: each is marked, then read.
TEST_F(KvCacheTest, LayersDoNotOverlap) {
  const int64_t blocks = 4;
  const std::pair<DType, int64_t> types[] = {
      {DType::kF32, 4 * 4}, {DType::kBF16, 4 * 2}, {DType::kInt8, 32 + 4}};
  for (const auto& [dtype, head_bytes] : types) {
    const auto cache = MustCreate(blocks, dtype);
    ASSERT_EQ(cache->layers().size(), 3u);
    const auto mark = [&](auto&& visit) {
      uint8_t number = 1;
      for (const KvLayer& layer : cache->layers()) {
        EXPECT_EQ(layer.dtype, dtype);
        EXPECT_EQ(layer.block_tokens, kKvBlockTokens);
        EXPECT_EQ(layer.block_stride, kKvBlockTokens * 2 * head_bytes);
        for (void* base : {layer.keys, layer.values}) {
          const std::span bytes(static_cast<uint8_t*>(base),
                                static_cast<size_t>(blocks * layer.block_stride));
          for (uint8_t& byte : bytes) visit(byte, number = static_cast<uint8_t>(number * 5 + 3));
        }
      }
    };
    mark([](uint8_t& place, uint8_t number) { place = number; });
    mark([](uint8_t& place, uint8_t number) { ASSERT_EQ(place, number); });
  }
}

TEST_F(KvCacheTest, TooLargeNamesTheOption) {
  const auto cache = KvCache::Create(*device_, Shape(), int64_t{1} << 38, DType::kF32);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(cache.status().message(), ::testing::HasSubstr("--kv-memory"));
}

}  // namespace
}  // namespace expertflow
