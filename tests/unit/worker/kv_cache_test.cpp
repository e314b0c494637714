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
    auto cache = KvCache::Create(*device_, Shape(), blocks, dtype);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    return std::move(cache).value();
  }
  std::unique_ptr<Device> device_;
};

// Every byte belongs to one block of the keys or values of one layer: each is marked, then read.
TEST_F(KvCacheTest, LayersDoNotOverlap) {
  const int64_t blocks = 4;
  const std::pair<DType, int64_t> types[] = {
      {DType::kF32, 4 * 4}, {DType::kBF16, 4 * 2}, {DType::kInt8, 32 + 4}};
  for (const auto& [dtype, head_bytes] : types) {
    const auto cache = MustCreate(blocks, dtype);
    ASSERT_EQ(cache->layers().size(), 3u);
    const auto mark = [&, dtype = dtype, head_bytes = head_bytes](auto&& visit) {
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

// Of the block that is copied to only the first tokens change, in every layer.
TEST_F(KvCacheTest, CopiesTheFirstTokensOfABlock) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) {
    const auto cache = MustCreate(3, dtype);
    const auto each_byte = [&](auto&& visit) {
      int32_t number = 0;
      for (const KvLayer& layer : cache->layers()) {
        for (void* base : {layer.keys, layer.values}) {
          const std::span bytes(static_cast<uint8_t*>(base),
                                static_cast<size_t>(3 * layer.block_stride));
          for (size_t i = 0; i < bytes.size(); ++i) visit(layer, i, bytes[i], ++number);
        }
      }
    };
    const auto mark = [](int32_t number) { return static_cast<uint8_t>(number * 167 >> 3); };
    each_byte([&](const KvLayer&, size_t, uint8_t& byte, int32_t number) { byte = mark(number); });
    ASSERT_TRUE(cache->CopyTokens(2, 0, 5).ok());
    each_byte([&](const KvLayer& layer, size_t i, uint8_t byte, int32_t number) {
      const bool copied = static_cast<int64_t>(i) < 5 * layer.token_bytes();
      ASSERT_EQ(byte, mark(copied ? number + static_cast<int32_t>(2 * layer.block_stride) : number))
          << i;
    });
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
