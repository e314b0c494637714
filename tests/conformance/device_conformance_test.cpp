// What every Device must do (device/device.h): memory, streams, events, copies. A backend joins by
// adding itself to the list at the end.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "tests/conformance/device_harness.h"

namespace expertflow {
namespace {

class DeviceConformance : public testing::TestWithParam<DeviceUnderTest> {
 protected:
  void SetUp() override {
    auto device = GetParam().create();
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = std::move(device).value();
  }
  Deadline Soon() const { return Deadline::AfterMs(30'000); }

  std::unique_ptr<Device> device_;
};

TEST_P(DeviceConformance, AllocationIsAlignedAndAllOfItCanBeWritten) {
  constexpr size_t kBytes = (3 << 20) + 4;
  auto memory = device_->Allocate(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*memory)->data()) % 4096, 0u);
  EXPECT_EQ((*memory)->bytes(), kBytes);
  EXPECT_TRUE(device_->Fill(StreamKind::kManagement, (*memory)->data(), 0x7fc00001u, kBytes).ok());
  ASSERT_TRUE(device_->SynchronizeStream(StreamKind::kManagement, Soon()).ok());
  std::vector<uint32_t> read(kBytes / 4);
  EXPECT_TRUE(
      device_->CopyToHost(StreamKind::kManagement, read.data(), (*memory)->data(), kBytes).ok());
  ASSERT_TRUE(device_->SynchronizeStream(StreamKind::kManagement, Soon()).ok());
  EXPECT_EQ(read, std::vector<uint32_t>(kBytes / 4, 0x7fc00001u));
}

TEST_P(DeviceConformance, TooLargeAllocationSaysNeedAndHave) {
  const auto memory = device_->Allocate(size_t{1} << 46);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("70368744177664"), std::string::npos)
      << memory.status().message();
  EXPECT_NE(memory.status().message().find("available"), std::string::npos);
}

TEST_P(DeviceConformance, CopiesOnEachStreamBringTheBytesThereAndBack) {
  std::vector<uint32_t> data(100'001);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint32_t>(i * 2654435761u);
  const size_t bytes = data.size() * 4;
  auto memory = device_->Allocate(bytes);
  ASSERT_TRUE(memory.ok());
  for (StreamKind stream : {StreamKind::kCompute, StreamKind::kTransfer, StreamKind::kManagement}) {
    for (uint32_t& value : data) ++value;
    std::vector<uint32_t> back(data.size());
    EXPECT_TRUE(device_->CopyToDevice(stream, (*memory)->data(), data.data(), bytes).ok());
    EXPECT_TRUE(device_->CopyToHost(stream, back.data(), (*memory)->data(), bytes).ok());
    ASSERT_TRUE(device_->SynchronizeStream(stream, Soon()).ok());
    EXPECT_EQ(back, data);
  }
}

TEST_P(DeviceConformance, EventOrdersComputeAfterTransferOfAnotherThread) {
  constexpr int kRounds = 200;
  constexpr size_t kFloats = 4096;
  auto memory = device_->Allocate(kFloats * 4);
  ASSERT_TRUE(memory.ok());
  auto* const array = reinterpret_cast<float*>((*memory)->data());
  const auto ready = device_->CreateEvent();
  const auto consumed = device_->CreateEvent();
  ASSERT_TRUE(ready.ok() && consumed.ok());

  // The rounds' hand-over says only that an event is recorded; the events order the work itself.
  std::atomic<int> produced_round{-1}, consumed_round{-1};
  std::thread producer([&] {
    std::vector<float> values(kFloats);
    for (int round = 0; round < kRounds; ++round) {
      while (consumed_round.load() < round - 1) std::this_thread::yield();
      EXPECT_TRUE(device_->StreamWait(StreamKind::kTransfer, *consumed).ok());
      EXPECT_TRUE(device_->SynchronizeStream(StreamKind::kTransfer, Soon()).ok());
      values.assign(kFloats, static_cast<float>(round));
      EXPECT_TRUE(
          device_->CopyToDevice(StreamKind::kTransfer, array, values.data(), kFloats * 4).ok());
      EXPECT_TRUE(device_->Record(*ready, StreamKind::kTransfer).ok());
      produced_round.store(round);
    }
    EXPECT_TRUE(device_->SynchronizeStream(StreamKind::kTransfer, Soon()).ok());
  });
  std::vector<float> back(kFloats);
  for (int round = 0; round < kRounds; ++round) {
    while (produced_round.load() < round) std::this_thread::yield();
    EXPECT_TRUE(device_->StreamWait(StreamKind::kCompute, *ready).ok());
    EXPECT_TRUE(device_->CopyToHost(StreamKind::kCompute, back.data(), array, kFloats * 4).ok());
    EXPECT_TRUE(device_->Record(*consumed, StreamKind::kCompute).ok());
    ASSERT_TRUE(device_->Synchronize(*consumed, Soon()).ok());
    EXPECT_EQ(back, std::vector<float>(kFloats, static_cast<float>(round)));
    consumed_round.store(round);
  }
  producer.join();
}

TEST_P(DeviceConformance, EventThatWasNeverRecordedDoesNotBlock) {
  const auto event = device_->CreateEvent();
  ASSERT_TRUE(event.ok());
  EXPECT_TRUE(device_->IsDone(*event));
  EXPECT_TRUE(device_->StreamWait(StreamKind::kCompute, *event).ok());
  EXPECT_TRUE(device_->Synchronize(*event, Deadline::AfterMs(0)).ok());
  EXPECT_TRUE(device_->SynchronizeStream(StreamKind::kCompute, Soon()).ok());
  device_->DestroyEvent(*event);
}

TEST_P(DeviceConformance, EventSlotsAreReusedWithANewGeneration) {
  const auto first = device_->CreateEvent();
  ASSERT_TRUE(first.ok());
  device_->DestroyEvent(*first);
  const auto second = device_->CreateEvent();
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(first->index != second->index || first->generation != second->generation);
  EXPECT_TRUE(device_->Record(*second, StreamKind::kManagement).ok());
  EXPECT_TRUE(device_->Synchronize(*second, Soon()).ok());
  EXPECT_TRUE(device_->IsDone(*second));
}

TEST_P(DeviceConformance, StaleEventHandleIsAProgrammerError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto event = device_->CreateEvent();
  ASSERT_TRUE(event.ok());
  device_->DestroyEvent(*event);
  EXPECT_DEATH((void)device_->IsDone(*event), "");
  EXPECT_DEATH(device_->DestroyEvent(*event), "");
  EXPECT_DEATH((void)device_->IsDone(EventHandle()), "");
  const auto successor = device_->CreateEvent();  // may live in the same slot
  ASSERT_TRUE(successor.ok());
  EXPECT_DEATH((void)device_->IsDone(*event), "");
}

TEST_P(DeviceConformance, CountersCountCopiesOfTheTransferStreamOnly) {
  std::vector<std::byte> data(70'000);
  auto memory = device_->Allocate(data.size());
  ASSERT_TRUE(memory.ok());
  const TransferCounters before = device_->transfer_counters();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        device_->CopyToDevice(StreamKind::kTransfer, (*memory)->data(), data.data(), data.size())
            .ok());
  }
  EXPECT_TRUE(
      device_->CopyToDevice(StreamKind::kCompute, (*memory)->data(), data.data(), data.size())
          .ok());
  EXPECT_TRUE(device_->SynchronizeStream(StreamKind::kTransfer, Soon()).ok());
  EXPECT_TRUE(device_->SynchronizeStream(StreamKind::kCompute, Soon()).ok());
  const TransferCounters after = device_->transfer_counters();
  EXPECT_EQ(after.copies - before.copies, 3u);
  EXPECT_EQ(after.bytes - before.bytes, 3u * data.size());
  EXPECT_GT(after.busy_ns, before.busy_ns);
}

TEST_P(DeviceConformance, ArenaAccountsForEveryByteAndNamesWhatDoesNotFit) {
  auto memory = device_->Allocate(1 << 20);
  ASSERT_TRUE(memory.ok());
  Arena arena(std::move(memory).value());
  const auto weights = arena.Carve("dense weights", 1000);
  const auto slots = arena.Carve("expert slots", 8192, 4096);
  ASSERT_TRUE(weights.ok() && slots.ok());
  EXPECT_EQ(weights->offset, 0u);
  EXPECT_EQ(slots->offset, 4096u);
  EXPECT_EQ(slots->data - weights->data, 4096);
  EXPECT_EQ(arena.bytes_used(), ArenaEnd(ArenaEnd(0, 1000), 8192, 4096));
  EXPECT_EQ(arena.bytes_used() + arena.bytes_free(), arena.bytes_total());

  const auto twice = arena.Carve("expert slots", 1);
  ASSERT_FALSE(twice.ok());
  for (size_t bytes : {arena.bytes_free() + 1, SIZE_MAX, SIZE_MAX - 4096}) {
    const auto region = arena.Carve("kv pages", bytes);
    ASSERT_FALSE(region.ok());
    EXPECT_EQ(region.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(region.status().message().find("'kv pages'"), std::string::npos);
    EXPECT_NE(region.status().message().find(std::to_string(bytes)), std::string::npos);
    EXPECT_NE(region.status().message().find(std::to_string(arena.bytes_free())),
              std::string::npos);
  }
  EXPECT_TRUE(arena.Carve("kv pages", arena.bytes_free()).ok());
  EXPECT_EQ(arena.bytes_free(), 0u);
  EXPECT_EQ(arena.regions().size(), 3u);
}

// A copy may end before its link could have brought it on no device, and a device that says that
// its copies are asynchronous must not let the caller wait for the link.
TEST_P(DeviceConformance, CopiesTakeTheLinksTime) {
  const LinkProperties& link = device_->properties().link;
  if (link.bytes_per_second == 0) GTEST_SKIP() << "the link has no limit";
  constexpr size_t kBytes = 1 << 20;
  const auto event = device_->CreateEvent();
  auto memory = device_->Allocate(kBytes);
  ASSERT_TRUE(event.ok() && memory.ok());
  const std::vector<std::byte> data(kBytes);
  const auto transfer_ns = static_cast<int64_t>(kBytes * 1e9 / link.bytes_per_second);
  bool returned_early = false;
  for (int round = 0; round < 20; ++round) {
    const int64_t begin_ns = NowNs();
    for (int copy = 0; copy < 2; ++copy) {
      ASSERT_TRUE(
          device_->CopyToDevice(StreamKind::kTransfer, (*memory)->data(), data.data(), kBytes)
              .ok());
    }
    ASSERT_TRUE(device_->Record(*event, StreamKind::kTransfer).ok());
    const bool done = device_->IsDone(*event);
    const int64_t returned_ns = NowNs();
    const int64_t least_ns = 2 * transfer_ns + link.latency_ns;
    if (done) {
      EXPECT_GE(returned_ns - begin_ns, least_ns - 1);
    }
    returned_early |= !done;
    ASSERT_TRUE(device_->Synchronize(*event, Soon()).ok());
    EXPECT_GE(NowNs() - begin_ns, least_ns - 1);
  }
  if (link.asynchronous) {
    EXPECT_TRUE(returned_early);
  }
}

TEST_P(DeviceConformance, AWaitForTheLinkEndsAtItsDeadline) {
  const LinkProperties& link = device_->properties().link;
  if (link.bytes_per_second == 0) GTEST_SKIP() << "the link has no limit";
  constexpr size_t kBytes = 16 << 20;  // takes far longer on the link than in memory
  auto memory = device_->Allocate(kBytes);
  ASSERT_TRUE(memory.ok());
  const std::vector<std::byte> data(kBytes);
  ASSERT_TRUE(
      device_->CopyToDevice(StreamKind::kTransfer, (*memory)->data(), data.data(), kBytes).ok());
  const Status status = device_->SynchronizeStream(StreamKind::kTransfer, Deadline::AfterMs(1));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
  EXPECT_TRUE(device_->SynchronizeStream(StreamKind::kTransfer, Soon()).ok());
}

Result<std::unique_ptr<Device>> CpuWithLink(bool copy_thread) {
  CpuDeviceOptions options;
  options.threads = 2;
  options.link.bytes_per_second = 50'000'000;
  options.link.latency_ns = 10'000;
  options.link.copy_thread = copy_thread;
  return CreateCpuDevice(options);
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, DeviceConformance,
    testing::Values(DeviceUnderTest{"cpu", [] { return CreateCpuDevice({.threads = 2}); }},
                    DeviceUnderTest{"cpu_link", [] { return CpuWithLink(false); }},
                    DeviceUnderTest{"cpu_copy_thread", [] { return CpuWithLink(true); }}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace expertflow
