#include "worker/schedule/kv_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/worker_schedule/ascending_tokens.h"

namespace expertflow {
namespace {

using testing::Ascending;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class KvBlocksTest : public ::testing::Test {
 protected:
  void Make(int64_t count, bool reuse = true) { blocks_.emplace(count, reuse); }
  // Computes a whole sequence and gives it back.
  void Leave(const std::vector<int32_t>& tokens) {
    KvTable table;
    const auto count = static_cast<int64_t>(tokens.size());
    blocks_->Reuse(&table, tokens, count);
    ASSERT_TRUE(blocks_->Reserve(&table, KvBlocks::BlocksFor(count)));
    blocks_->Computed(&table, tokens, count);
    blocks_->Release(&table);
    Check({});
  }
  int64_t Reusable(const std::vector<int32_t>& tokens, int64_t limit = 1000) {
    KvTable table;
    const int64_t reused = blocks_->Reuse(&table, tokens, limit).tokens;
    blocks_->Release(&table);
    return reused;
  }
  void Check(const std::vector<const KvTable*>& tables) {
    const Status status = blocks_->CheckInvariants(tables);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  std::optional<KvBlocks> blocks_;
};

TEST_F(KvBlocksTest, BlocksForTokens) {
  EXPECT_EQ(KvBlocks::BlocksFor(0), 0);
  EXPECT_EQ(KvBlocks::BlocksFor(1), 1);
  EXPECT_EQ(KvBlocks::BlocksFor(16), 1);
  EXPECT_EQ(KvBlocks::BlocksFor(17), 2);
  EXPECT_EQ(KvBlocks::BlocksFor(int64_t{1} << 40), int64_t{1} << 36);
}

TEST_F(KvBlocksTest, GivesTheLowestBlocksFirstAndNothingRatherThanTooFew) {
  Make(5);
  KvTable a, b;
  ASSERT_TRUE(blocks_->Reserve(&a, 2));
  EXPECT_THAT(a.blocks, ElementsAre(0, 1));
  EXPECT_FALSE(blocks_->Reserve(&b, 4));
  EXPECT_THAT(b.blocks, IsEmpty());
  ASSERT_TRUE(blocks_->Reserve(&b, 3));
  EXPECT_THAT(b.blocks, ElementsAre(2, 3, 4));
  EXPECT_TRUE(blocks_->Reserve(&a, 1));  // has more
  EXPECT_EQ(blocks_->available(), 0);
  blocks_->Release(&a);
  EXPECT_EQ(blocks_->available(), 2);
  ASSERT_TRUE(blocks_->Reserve(&b, 4));
  EXPECT_THAT(b.blocks, ElementsAre(2, 3, 4, 0));
  Check({&b});
}

TEST_F(KvBlocksTest, ASequenceGoesOnFromTheSameBeginning) {
  Make(8);
  Leave(Ascending(100, 40));
  EXPECT_EQ(blocks_->kept(), 2);  // the third block is not full
  EXPECT_EQ(blocks_->available(), 8);
  KvTable table;
  const auto reused = blocks_->Reuse(&table, Ascending(100, 40), 39);
  EXPECT_EQ(reused.tokens, 32);
  EXPECT_EQ(reused.copied, 0);
  EXPECT_EQ(table.known, 2);
  EXPECT_EQ(blocks_->held(), 2);
  KvTable other;
  EXPECT_EQ(blocks_->Reuse(&other, Ascending(100, 40), 39).tokens, 32);
  EXPECT_EQ(other.blocks, table.blocks);
  EXPECT_EQ(blocks_->held(), 2);
  EXPECT_EQ(blocks_->CountHeld(Ascending(100, 40), 39), 2);
  Check({&table, &other});
  blocks_->Release(&table);
  EXPECT_EQ(blocks_->held(), 2);
  blocks_->Release(&other);
  EXPECT_EQ(blocks_->held(), 0);
  EXPECT_EQ(blocks_->CountHeld(Ascending(100, 40), 39), 0);
}

TEST_F(KvBlocksTest, TheSameBlockAfterAnotherBeginningIsAnother) {
  Make(8);
  Leave(Joined(Ascending(0, 16), Ascending(500, 16)));
  EXPECT_EQ(Reusable(Joined(Ascending(16, 16), Ascending(500, 16))), 0);
  EXPECT_EQ(Reusable(Ascending(500, 16)), 0);
  Leave(Joined(Ascending(16, 16), Ascending(500, 16)));
  EXPECT_EQ(blocks_->kept(), 4);
  EXPECT_EQ(Reusable(Joined(Ascending(16, 16), Ascending(500, 16))), 32);
}

// The beginning of a block is copied: the block itself is never written again.
TEST_F(KvBlocksTest, CopiesTheBeginningThatAgrees) {
  Make(8);
  Leave(Ascending(100, 32));
  Leave(Joined(Ascending(100, 20), Ascending(700, 12)));
  for (const int32_t same : {1, 4, 5, 11, 15}) {
    KvTable table;
    const auto tokens = Joined(Ascending(100, 16 + same), Ascending(300, 20));
    const auto reused = blocks_->Reuse(&table, tokens, 1000);
    EXPECT_EQ(reused.tokens, 16 + same);
    EXPECT_EQ(reused.copied, same);
    EXPECT_EQ(reused.copy_to, table.blocks[1]);
    EXPECT_NE(reused.copy_from, reused.copy_to);
    EXPECT_EQ(table.known, 1);
    Check({&table});
    blocks_->Release(&table);
  }
  // The other one of the two.
  KvTable table;
  EXPECT_EQ(blocks_->Reuse(&table, Joined(Ascending(100, 20), Ascending(700, 3)), 1000).tokens, 23);
  blocks_->Release(&table);
  // What has to be computed is not taken, however well known.
  EXPECT_EQ(Reusable(Ascending(100, 32), 31), 31);
  EXPECT_EQ(Reusable(Ascending(100, 32), 16), 16);
  EXPECT_EQ(Reusable(Ascending(100, 32), 3), 3);
  EXPECT_EQ(Reusable(Ascending(100, 32), 0), 0);
}

TEST_F(KvBlocksTest, ACopyNeverTakesThePlaceOfWhatItCopies) {
  Make(1);
  Leave(Ascending(100, 16));
  KvTable table;
  EXPECT_EQ(blocks_->Reuse(&table, Ascending(100, 15), 14).tokens, 0);
  EXPECT_THAT(table.blocks, IsEmpty());
  Check({&table});
  EXPECT_EQ(Reusable(Ascending(100, 16)), 16);
}

TEST_F(KvBlocksTest, ReuseWithBlocksReservedGivesTheSpareOnesBack) {
  Make(6);
  Leave(Ascending(100, 40));
  KvTable table;
  ASSERT_TRUE(blocks_->Reserve(&table, 3));
  EXPECT_EQ(blocks_->held(), 3);
  const auto reused = blocks_->Reuse(&table, Ascending(100, 40), 39);
  EXPECT_EQ(reused.tokens, 32);
  EXPECT_THAT(table.blocks, ::testing::SizeIs(3));
  EXPECT_EQ(blocks_->held(), 3);
  Check({&table});
}

TEST_F(KvBlocksTest, TwoThatComputeTheSameEndUpWithOneBlock) {
  Make(6);
  KvTable a, b;
  ASSERT_TRUE(blocks_->Reserve(&a, 2) && blocks_->Reserve(&b, 2));
  blocks_->Computed(&a, Ascending(100, 20), 20);
  EXPECT_EQ(blocks_->held(), 4);
  blocks_->Computed(&b, Ascending(100, 20), 20);
  EXPECT_EQ(blocks_->held(), 3);
  EXPECT_EQ(a.blocks[0], b.blocks[0]);
  Check({&a, &b});
}

TEST_F(KvBlocksTest, WhatWasGivenUpLongestAgoGoesFirstAndEndsBeforeBeginnings) {
  Make(4);
  Leave(Ascending(100, 32));
  Leave(Ascending(200, 32));
  Leave(Ascending(300, 16));
  EXPECT_EQ(Reusable(Ascending(100, 32)), 16);  // its second block's place was taken
  EXPECT_EQ(Reusable(Ascending(200, 32)), 32);
  Leave(Ascending(400, 32));  // 100's first was looked at before 200's: it goes, and 300's
  EXPECT_EQ(Reusable(Ascending(100, 32)), 0);
  EXPECT_EQ(Reusable(Ascending(300, 16)), 0);
  EXPECT_EQ(Reusable(Ascending(200, 32)), 32);
}

TEST_F(KvBlocksTest, KeepsNothingWhenItIsOff) {
  Make(4, /*reuse=*/false);
  Leave(Ascending(100, 32));
  EXPECT_EQ(blocks_->kept(), 0);
  EXPECT_EQ(Reusable(Ascending(100, 32)), 0);
}

// A block's contents are followed by its number: whoever is told that tokens are there finds them.
TEST_F(KvBlocksTest, GrowsAtTheEndAndShrinksWhereNobodyIs) {
  Make(2);
  KvTable a;
  ASSERT_TRUE(blocks_->Reserve(&a, 2));
  KvTable b;
  EXPECT_FALSE(blocks_->Reserve(&b, 1));
  blocks_->Grow(3);
  EXPECT_EQ(blocks_->total(), 5);
  ASSERT_TRUE(blocks_->Reserve(&b, 2));
  EXPECT_THAT(b.blocks, ElementsAre(2, 3));
  EXPECT_FALSE(blocks_->Shrink(2));
  EXPECT_EQ(blocks_->total(), 5);
  EXPECT_TRUE(blocks_->Shrink(1));
  EXPECT_FALSE(blocks_->Shrink(1));
  blocks_->Release(&b);
  EXPECT_TRUE(blocks_->Shrink(2));
  Check({&a});
  EXPECT_EQ(blocks_->available(), 0);
}

// What is known of the blocks that go, and what comes after it, is forgotten; the rest is not.
TEST_F(KvBlocksTest, ShrinkingForgetsWhatWasThere) {
  Make(3);
  KvTable front;
  ASSERT_TRUE(blocks_->Reserve(&front, 2));  // 0 and 1
  blocks_->Grow(1);
  const std::vector<int32_t> tokens = Ascending(100, 32);
  KvTable table;
  ASSERT_TRUE(blocks_->Reserve(&table, 2));  // 2 and 3
  blocks_->Computed(&table, tokens, 32);
  blocks_->Release(&table);
  blocks_->Release(&front);
  Leave(Ascending(500, 16));
  EXPECT_EQ(Reusable(tokens), 32);
  EXPECT_TRUE(blocks_->Shrink(1));
  Check({});
  EXPECT_EQ(Reusable(tokens), 16);
  EXPECT_TRUE(blocks_->Shrink(1));
  EXPECT_EQ(Reusable(tokens), 0);
  EXPECT_EQ(Reusable(Ascending(500, 16)), 16);
  Check({});
}

TEST_F(KvBlocksTest, RandomUseNeverMixesContents) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    std::mt19937 random(seed);
    Make(12);
    struct Sequence {
      std::vector<int32_t> tokens;
      KvTable table;
      int64_t computed = 0;
    };
    std::vector<Sequence> sequences;
    // What stands at each position of each block: its token and all before it.
    std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> memory;
    const auto prefix = [](const Sequence& sequence, int64_t count) {
      return std::vector<int32_t>(sequence.tokens.begin(), sequence.tokens.begin() + count);
    };
    int64_t reused_in_all = 0;
    for (int event = 0; event < 600; ++event) {
      const uint32_t kind = random() % 8;
      if (random() % 20 == 0) {
        if (random() % 2 == 0) {
          blocks_->Grow(1 + random() % 3);
        } else if (blocks_->total() > 6) {
          blocks_->Shrink(1 + random() % 3);
        }
      }
      if (kind < 3) {
        Sequence sequence;
        sequence.tokens.resize(1 + random() % 60);
        for (int32_t& token : sequence.tokens) token = random() % 16 == 0 ? 1 : 0;
        const auto reused = blocks_->Reuse(&sequence.table, sequence.tokens,
                                           static_cast<int64_t>(sequence.tokens.size()) - 1);
        for (int32_t i = 0; i < reused.copied; ++i) {
          memory[{reused.copy_to, i}] = memory.at({reused.copy_from, i});
        }
        sequence.computed = reused.tokens;
        reused_in_all += reused.tokens;
        sequences.push_back(std::move(sequence));
      } else if (!sequences.empty()) {
        const size_t index = random() % sequences.size();
        Sequence& sequence = sequences[index];
        const auto left = static_cast<int64_t>(sequence.tokens.size()) - sequence.computed;
        const int64_t end = sequence.computed + (left == 0 ? 0 : 1 + random() % left);
        if (left > 0 && blocks_->Reserve(&sequence.table, KvBlocks::BlocksFor(end))) {
          for (int64_t at = sequence.computed; at < end; ++at) {
            const int32_t block = sequence.table.blocks[static_cast<size_t>(at) / kKvBlockTokens];
            memory[{block, static_cast<int32_t>(at % kKvBlockTokens)}] = prefix(sequence, at + 1);
          }
          sequence.computed = end;
          blocks_->Computed(&sequence.table, sequence.tokens, end);
        } else {
          blocks_->Release(&sequence.table);
          sequences.erase(sequences.begin() + static_cast<ptrdiff_t>(index));
        }
      }
      std::vector<const KvTable*> tables;
      for (const Sequence& sequence : sequences) {
        tables.push_back(&sequence.table);
        for (int64_t at = 0; at < sequence.computed; ++at) {
          const int32_t block = sequence.table.blocks[static_cast<size_t>(at) / kKvBlockTokens];
          ASSERT_EQ((memory[{block, static_cast<int32_t>(at % kKvBlockTokens)}]),
                    prefix(sequence, at + 1))
              << "seed " << seed << " event " << event;
        }
      }
      Check(tables);
    }
    EXPECT_GT(reused_in_all, 200);
  }
}

}  // namespace
}  // namespace expertflow
