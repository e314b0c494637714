#include "device/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <thread>
#include <vector>

namespace expertflow::cpu {
namespace {

int64_t ProcessCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

TEST(ThreadPool, RunsEachChunkOnceForManyRegions) {
  for (int32_t threads : {1, 2, 4, 7}) {
    auto pool = ThreadPool::Create(threads);
    ASSERT_TRUE(pool.ok());
    EXPECT_EQ((*pool)->threads(), threads);
    for (int32_t region = 0; region < 2'000; ++region) {
      const int32_t chunks = region % 23;
      std::vector<int32_t> runs(static_cast<size_t>(chunks));
      std::atomic<bool> thread_out_of_range{false};
      (*pool)->ParallelFor(chunks, [&](int32_t chunk, int32_t thread) {
        ++runs[static_cast<size_t>(chunk)];
        if (thread < 0 || thread >= threads) thread_out_of_range = true;
      });
      ASSERT_EQ(runs, std::vector<int32_t>(static_cast<size_t>(chunks), 1)) << region;
      ASSERT_FALSE(thread_out_of_range);
    }
  }
}

TEST(ThreadPool, WorkersWakeFromSleep) {
  auto pool = ThreadPool::Create(3);
  ASSERT_TRUE(pool.ok());
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> runs{0};
    (*pool)->ParallelFor(8, [&](int32_t, int32_t) { ++runs; });
    ASSERT_EQ(runs, 8);
  }
}

// An idle job must not use CPU: workers sleep soon after the last region.
TEST(ThreadPool, IdlePoolUsesNoCpu) {
  auto pool = ThreadPool::Create(4);
  ASSERT_TRUE(pool.ok());
  (*pool)->ParallelFor(8, [](int32_t, int32_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int64_t before_ns = ProcessCpuNs();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(ProcessCpuNs() - before_ns, 20'000'000);  // three spinning workers: 600 ms
}

TEST(ThreadPool, AbsurdThreadCountsAreRefusedByNumber) {
  for (int32_t threads : {-1, 257, 1'000'000}) {
    const auto pool = ThreadPool::Create(threads);
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(pool.status().message().find(std::to_string(threads)), std::string::npos);
  }
  const auto all = ThreadPool::Create(0);
  ASSERT_TRUE(all.ok());
  EXPECT_GE((*all)->threads(), 1);
}

}  // namespace
}  // namespace expertflow::cpu
