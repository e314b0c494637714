// Memory goes to the KV cache where it is needed and back when it is not.
#include "worker/schedule/memory_balance.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

TEST(MemoryBalanceTest, AnExchangeIsWholeBlocksInWholeSlots) {
  const struct {
    uint64_t slot_bytes;
    uint64_t block_bytes;
    int32_t slots;
    int64_t blocks;
  } cases[] = {
      {8192, 1024, 1, 8}, {8192, 1000, 1, 8},    {8192, 8192, 1, 1}, {8192, 5000, 1, 1},
      {8192, 8193, 2, 1}, {4096, 100000, 25, 1}, {1, 1, 1, 1},
  };
  for (const auto& c : cases) {
    const MemoryExchange exchange = ExchangeOf(c.slot_bytes, c.block_bytes);
    EXPECT_EQ(exchange.slots, c.slots) << c.slot_bytes << " " << c.block_bytes;
    EXPECT_EQ(exchange.blocks, c.blocks) << c.slot_bytes << " " << c.block_bytes;
    EXPECT_GE(static_cast<uint64_t>(exchange.slots) * c.slot_bytes,
              static_cast<uint64_t>(exchange.blocks) * c.block_bytes);
  }
}

TEST(MemoryBalanceTest, GivesNoMoreThanThereMayBe) {
  MemoryBalance balance({.exchange = {1, 8}, .exchanges_most = 3});
  EXPECT_EQ(balance.ExchangesFor(0), 0);
  EXPECT_EQ(balance.ExchangesFor(1), 1);
  EXPECT_EQ(balance.ExchangesFor(9), 2);
  EXPECT_EQ(balance.ExchangesFor(1'000), 3);
  balance.Gave();
  balance.Gave();
  EXPECT_EQ(balance.ExchangesFor(1'000), 1);
  EXPECT_EQ(balance.exchanges(), 2);
}

TEST(MemoryBalanceTest, TakesBackWhatWasNotNeededForAWhileAndOneAtATime) {
  MemoryBalance balance({.exchange = {1, 8}, .exchanges_most = 3, .patience_steps = 10});
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(balance.OnStep(100, 1)) << "nothing to take";
  balance.Gave();
  balance.Gave();
  // Each of three sequences may need a block besides.
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(balance.OnStep(10, 3));
  for (int step = 1; step < 10; ++step) EXPECT_FALSE(balance.OnStep(11, 3));
  EXPECT_FALSE(balance.OnStep(10, 3));  // needed once more
  for (int step = 1; step < 10; ++step) EXPECT_FALSE(balance.OnStep(11, 3));
  EXPECT_TRUE(balance.OnStep(11, 3));
  EXPECT_TRUE(balance.OnStep(11, 3)) << "until it was done";
  balance.TookBack();
  for (int step = 1; step < 10; ++step) EXPECT_FALSE(balance.OnStep(11, 3));
  EXPECT_TRUE(balance.OnStep(11, 3));
  EXPECT_EQ(balance.moves(), 3u);
}

}  // namespace
}  // namespace expertflow
