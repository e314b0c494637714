#include "worker/cache/transfer_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace expertflow {
namespace {

ExpertKey Key(int32_t layer, int32_t expert) {
  return {LayerId(layer), ExpertId(expert)};
}

CopyRequest Demand(ExpertKey key, uint64_t bytes) {
  return {key, CopyKind::kDemand, bytes};
}

CopyRequest Guess(ExpertKey key, uint64_t bytes, uint32_t ppm, uint64_t deadline = 1) {
  return {key, CopyKind::kPrefetch, bytes, ppm, deadline};
}

TransferQueueOptions Options() {
  TransferQueueOptions options;
  options.max_jobs = 8;
  options.max_outstanding_chunks = 2;
  options.chunk_bytes = 100;
  return options;
}

Chunk Next(TransferQueue& queue) {
  const auto chunk = queue.NextChunk();
  EXPECT_TRUE(chunk.has_value());
  return chunk.value_or(Chunk{});
}

TEST(TransferQueue, ChunksCoverTheBlockExactly) {
  TransferQueue queue(Options());
  const CopyId copy = queue.Enqueue(Demand(Key(0, 0), 250));
  uint64_t at = 0;
  for (const uint64_t bytes : {100, 100, 50}) {
    const Chunk chunk = Next(queue);
    EXPECT_EQ(chunk.copy, copy);
    EXPECT_EQ(chunk.offset, at);
    EXPECT_EQ(chunk.bytes, bytes);
    EXPECT_EQ(chunk.first, at == 0);
    at += bytes;
    EXPECT_EQ(chunk.last, at == 250);
    const CopyEnd end = queue.OnChunkDone(chunk, true);
    EXPECT_EQ(end.state, at == 250 ? CopyState::kDone : CopyState::kActive);
    EXPECT_EQ(end.bytes_arrived, at);
  }
  EXPECT_EQ(queue.jobs(), 0);
  EXPECT_EQ(queue.stats().demand_bytes, 250u);
}

TEST(TransferQueue, FIELD_28_DemandGoesBeforeSpeculation) {
  TransferQueue queue(Options());
  queue.Enqueue(Guess(Key(1, 0), 300, 900'000));
  const Chunk speculative = Next(queue);
  const CopyId demand = queue.Enqueue(Demand(Key(0, 0), 150));
  const Chunk first = Next(queue);
  EXPECT_EQ(first.copy, demand);  // the prefetch waits at its chunk border
  EXPECT_FALSE(queue.NextChunk().has_value()) << "two chunks are outstanding";
  queue.OnChunkDone(speculative, true);
  const Chunk second = Next(queue);
  EXPECT_EQ(second.copy, demand);
  queue.OnChunkDone(first, true);
  EXPECT_EQ(queue.OnChunkDone(second, true).state, CopyState::kDone);
  EXPECT_EQ(Next(queue).copy, speculative.copy);
}

TEST(TransferQueue, SmallChunksGoOutTogether) {
  TransferQueueOptions options = Options();
  options.max_outstanding_chunks = 5;
  options.small_outstanding_bytes = 250;
  TransferQueue queue(options);
  for (int32_t e = 0; e < 8; ++e) queue.Enqueue(Demand(Key(0, e), e < 4 ? 100 : 20));
  std::deque<Chunk> out;
  // Two of any size; the third since 200 < 250 bytes are out.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(queue.NextChunkBytes(), 100u);
    out.push_back(Next(queue));
  }
  EXPECT_FALSE(queue.NextChunk().has_value()) << "300 bytes are out";
  EXPECT_EQ(queue.NextChunkBytes(), 0u);
  queue.OnChunkDone(out.front(), true);
  out.pop_front();
  out.push_back(Next(queue));
  while (!out.empty()) {
    queue.OnChunkDone(out.front(), true);
    out.pop_front();
  }
  for (int i = 0; i < 4; ++i) Next(queue);
  EXPECT_FALSE(queue.HasWork());
  EXPECT_TRUE(queue.CheckInvariants().ok());
}

TEST(TransferQueue, SpeculationGoesByBenefitPerByteThenDeadlineThenKey) {
  TransferQueue queue(Options());
  const CopyId large = queue.Enqueue(Guess(Key(2, 0), 100, 800'000));
  const CopyId later = queue.Enqueue(Guess(Key(3, 0), 50, 800'000, 5));
  const CopyId high_key = queue.Enqueue(Guess(Key(2, 2), 50, 800'000, 4));
  const CopyId low_key = queue.Enqueue(Guess(Key(2, 1), 50, 800'000, 4));
  for (const CopyId expected : {low_key, high_key, later, large}) {
    const Chunk chunk = Next(queue);
    EXPECT_EQ(chunk.copy, expected);
    queue.OnChunkDone(chunk, true);
  }
}

TEST(TransferQueue, CancelDropsTheRest) {
  TransferQueue queue(Options());
  const CopyId idle = queue.Enqueue(Guess(Key(1, 0), 300, 500'000));
  EXPECT_EQ(queue.Cancel(idle).state, CopyState::kCancelled);
  const CopyId busy = queue.Enqueue(Guess(Key(1, 1), 300, 500'000));
  const Chunk chunk = Next(queue);
  EXPECT_EQ(chunk.copy, busy);
  EXPECT_EQ(queue.Cancel(busy).state, CopyState::kActive);
  EXPECT_FALSE(queue.HasWork());
  const CopyEnd end = queue.OnChunkDone(chunk, true);
  EXPECT_EQ(end.state, CopyState::kCancelled);
  EXPECT_EQ(end.bytes_arrived, 100u);
  EXPECT_EQ(queue.jobs(), 0);
  EXPECT_EQ(queue.stats().cancelled, 2u);
}

TEST(TransferQueue, PromotedPrefetchIsDemand) {
  TransferQueue queue(Options());
  const CopyId first = queue.Enqueue(Guess(Key(1, 0), 100, 900'000));
  const CopyId confirmed = queue.Enqueue(Guess(Key(1, 1), 100, 100'000));
  queue.Promote(confirmed);
  const Chunk chunk = Next(queue);
  EXPECT_EQ(chunk.copy, confirmed);
  EXPECT_EQ(Next(queue).copy, first);
  queue.OnChunkDone(chunk, true);
  EXPECT_EQ(queue.stats().demand_bytes, 100u);
}

TEST(TransferQueue, FIELD_26_SpeculationHasAByteBudget) {
  TransferQueueOptions options = Options();
  options.speculative_bytes_per_window = 150;
  TransferQueue queue(options);
  queue.Enqueue(Guess(Key(1, 0), 800, 900'000));
  queue.OnChunkDone(Next(queue), true);
  queue.OnChunkDone(Next(queue), true);  // may overrun by part of a chunk
  EXPECT_FALSE(queue.NextChunk().has_value());
  queue.Enqueue(Demand(Key(0, 0), 100));  // demand has none
  queue.OnChunkDone(Next(queue), true);
  EXPECT_FALSE(queue.NextChunk().has_value());
  queue.OpenWindow();
  EXPECT_TRUE(queue.NextChunk().has_value());
}

TEST(TransferQueue, FailedChunkEndsTheCopyAfterItsOtherChunks) {
  TransferQueue queue(Options());
  queue.Enqueue(Demand(Key(0, 0), 400));
  const Chunk a = Next(queue);
  const Chunk b = Next(queue);
  EXPECT_EQ(queue.OnChunkDone(a, false).state, CopyState::kActive);
  EXPECT_FALSE(queue.NextChunk().has_value()) << "no more chunks of a failed copy";
  EXPECT_EQ(queue.OnChunkDone(b, true).state, CopyState::kFailed);
  EXPECT_EQ(queue.jobs(), 0);
}

TEST(TransferQueue, FullQueueRefuses) {
  TransferQueueOptions options = Options();
  options.max_jobs = 1;
  TransferQueue queue(options);
  EXPECT_TRUE(queue.Enqueue(Demand(Key(0, 0), 10)).valid());
  EXPECT_FALSE(queue.Enqueue(Demand(Key(0, 1), 10)).valid());
  EXPECT_EQ(queue.stats().rejected, 1u);
}

uint64_t RandomEvents(uint64_t seed, int events) {
  uint64_t state = seed * 2 + 1;
  const auto below = [&](uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state >> 33) % n);
  };
  TransferQueueOptions options = Options();
  options.max_outstanding_chunks = 1 + static_cast<int32_t>(below(3));
  options.speculative_bytes_per_window = 500;
  TransferQueue queue(options);
  std::vector<CopyId> live;
  std::deque<Chunk> outstanding;
  const auto ended = [&](CopyId copy, const CopyEnd& end) {
    if (end.state != CopyState::kActive) std::erase(live, copy);
  };
  for (int i = 0; i < events; ++i) {
    switch (below(6)) {
      case 0: {
        const ExpertKey key = Key(static_cast<int32_t>(below(4)), static_cast<int32_t>(below(8)));
        const CopyId copy =
            queue.Enqueue(below(2) == 0 ? Demand(key, 1 + below(500))
                                        : Guess(key, 1 + below(500), below(1'000'000)));
        if (copy.valid()) live.push_back(copy);
        break;
      }
      case 1:
        if (!live.empty()) queue.Promote(live[below(static_cast<uint32_t>(live.size()))]);
        break;
      case 2:
        if (!live.empty() && below(3) == 0) {
          const CopyId copy = live[below(static_cast<uint32_t>(live.size()))];
          ended(copy, queue.Cancel(copy));
        }
        break;
      case 3: queue.OpenWindow(); break;
      case 4:
        if (const auto chunk = queue.NextChunk()) outstanding.push_back(*chunk);
        break;
      default:
        if (!outstanding.empty()) {
          const Chunk chunk = outstanding.front();
          outstanding.pop_front();
          ended(chunk.copy, queue.OnChunkDone(chunk, below(20) != 0));
        }
    }
    const Status status = queue.CheckInvariants();
    if (!status.ok()) {
      ADD_FAILURE() << "seed " << seed << " event " << i << ": " << status.ToString();
      break;
    }
    EXPECT_EQ(live.size(), static_cast<size_t>(queue.jobs()));
  }
  return queue.digest();
}

TEST(TransferQueue, InvariantsHoldUnderRandomEvents) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(RandomEvents(seed, 10'000), RandomEvents(seed, 10'000));
  }
}

TEST(TransferQueue, GoldenDigest) {
  EXPECT_EQ(RandomEvents(42, 20'000), 17996391024645205514u);
}

}  // namespace
}  // namespace expertflow
