#include "device/cpu/copy_thread.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "device/cpu/cpu_device.h"

namespace expertflow::cpu {
namespace {

void SleepMs(int64_t ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

class CopyThreadTest : public ::testing::Test {
 protected:
  // Asks for one copy after the other until the thread takes it or not, as `taken` says.
  bool AskUntil(bool taken, int64_t pause_ms) {
    const Deadline deadline = Deadline::AfterMs(30'000);
    const std::byte from{1};
    std::byte to{0};
    while (thread_.HandOver(&to, &from, 1, NowNs()) != taken) {
      thread_.Drain();
      if (deadline.Passed()) return false;
      if (pause_ms > 0) SleepMs(pause_ms);
    }
    thread_.Drain();
    return true;
  }

  StreamProgress progress_;
  CopyThread thread_{progress_};
};

TEST_F(CopyThreadTest, CopiesAreMadeInTheirOrderAndAreWorkOfTheirStreamUntilThen) {
  constexpr size_t kBytes = 40'000;
  constexpr int kCopies = 2'000;
  std::vector<std::vector<std::byte>> from;
  for (int i = 0; i < 7; ++i) from.emplace_back(kBytes, static_cast<std::byte>(i));
  std::vector<std::byte> to(kBytes);
  int made_here = 0;
  for (int i = 0; i < kCopies; ++i) {
    const auto& source = from[static_cast<size_t>(i) % from.size()];
    if (!thread_.HandOver(to.data(), source.data(), kBytes, NowNs())) {
      thread_.Drain();
      to = source;
      ++made_here;
    }
    if (i % 50 != 49) continue;
    const uint64_t point = progress_.Begun(StreamKind::kTransfer);
    EXPECT_EQ(point + static_cast<uint64_t>(made_here), static_cast<uint64_t>(i) + 1);
    ASSERT_TRUE(progress_.WaitUntilDone(StreamKind::kTransfer, point, Deadline::AfterMs(30'000)));
    ASSERT_EQ(to, source) << "after copy " << i;
  }
}

TEST_F(CopyThreadTest, SleepsWhenThereIsNothingToDoAndIsWokenForCopiesThatFollowEachOther) {
  EXPECT_TRUE(AskUntil(false, 5)) << "copies that are far apart do not wake it";
  EXPECT_TRUE(AskUntil(true, 0)) << "copies that follow each other do";
}

TEST_F(CopyThreadTest, WhatWasHandedOverIsDoneBeforeItEnds) {
  std::vector<std::byte> from(50'000, std::byte{3});
  std::vector<std::byte> to(from.size() * 16);
  StreamProgress progress;
  size_t handed = 0;
  {
    CopyThread thread(progress);
    while (handed < 16 &&
           thread.HandOver(to.data() + handed * from.size(), from.data(), from.size(), NowNs())) {
      ++handed;
    }
  }
  EXPECT_TRUE(progress.IsDone(StreamKind::kTransfer, handed));
  for (size_t i = 0; i < handed * from.size(); ++i) ASSERT_EQ(to[i], std::byte{3});
}

// Small copies that are handed over, large ones and fills that are not, over each other.
TEST(CopyThreadDevice, WorkOfTheTransferStreamKeepsItsOrder) {
  const auto device = CreateCpuDevice(
      {.threads = 1, .link = {.bytes_per_second = 1'000'000'000'000, .copy_thread = true}});
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  EXPECT_TRUE((*device)->properties().link.copy_thread);
  constexpr size_t kSmall = 60'000;
  constexpr size_t kLarge = 200'000;
  const std::vector<std::byte> small(kSmall, std::byte{1});
  const std::vector<std::byte> large(kLarge, std::byte{2});
  std::vector<std::byte> to(kLarge);
  const auto event = (*device)->CreateEvent();
  ASSERT_TRUE(event.ok());
  const auto copy = [&](const std::vector<std::byte>& from) {
    ASSERT_TRUE(
        (*device)->CopyToDevice(StreamKind::kTransfer, to.data(), from.data(), from.size()).ok());
  };
  for (int round = 0; round < 500; ++round) {
    copy(small);
    copy(large);
    copy(small);
    ASSERT_TRUE((*device)->Record(*event, StreamKind::kTransfer).ok());
    ASSERT_TRUE((*device)->Synchronize(*event, Deadline::AfterMs(30'000)).ok());
    ASSERT_EQ(to[0], std::byte{1}) << round;
    ASSERT_EQ(to[kSmall], std::byte{2}) << round;
    copy(small);
    copy(large);
    ASSERT_TRUE(
        (*device)->SynchronizeStream(StreamKind::kTransfer, Deadline::AfterMs(30'000)).ok());
    ASSERT_EQ(to, large) << round;
    copy(small);
    ASSERT_TRUE((*device)->Fill(StreamKind::kTransfer, to.data(), 0x04040404, kSmall).ok());
    std::byte back{};
    ASSERT_TRUE((*device)->CopyToHost(StreamKind::kTransfer, &back, to.data(), 1).ok());
    ASSERT_EQ(back, std::byte{4}) << round;
  }
  EXPECT_EQ((*device)->transfer_counters().copies, 500u * 6);
}

TEST(CopyThreadDevice, ALinkWithoutALimitHasNone) {
  const auto device = CreateCpuDevice({.threads = 1, .link = {.copy_thread = true}});
  ASSERT_TRUE(device.ok());
  EXPECT_FALSE((*device)->properties().link.copy_thread);
}

}  // namespace
}  // namespace expertflow::cpu
