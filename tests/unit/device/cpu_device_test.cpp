// What only the CPU device does: kernel choice, emulated link. The rest is in tests/conformance.
#include "device/cpu/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace expertflow {
namespace {

using testing::HasSubstr;

LinkProperties Link(uint64_t bytes_per_second, int64_t latency_ns) {
  LinkProperties link;
  link.bytes_per_second = bytes_per_second;
  link.latency_ns = latency_ns;
  return link;
}

TEST(CpuDevice, EveryAvailableKernelSetCanBeForced) {
  const auto available = AvailableKernels();
  ASSERT_FALSE(available.empty());
  EXPECT_EQ(available.front(), "scalar");
  for (const std::string& kernels : available) {
    const auto device = CreateCpuDevice({.threads = 1, .kernels = kernels});
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    EXPECT_EQ((*device)->properties().kernels, kernels);
    EXPECT_EQ((*device)->properties().arithmetic == "16 lanes", kernels != "amx");
  }
  const auto device = CreateCpuDevice({.threads = 1});
  ASSERT_TRUE(device.ok());
  // The fastest of those that give the same bits.
  const bool has_amx = available.back() == "amx";
  EXPECT_EQ((*device)->properties().kernels, available[available.size() - (has_amx ? 2 : 1)]);
  EXPECT_EQ((*device)->properties().arithmetic, "16 lanes");
  EXPECT_TRUE((*device)->properties().host_pointers);
  EXPECT_FALSE((*device)->properties().link.emulated);
}

TEST(CpuDevice, KernelSetThatIsNotThereIsRefusedWithWhatThereIs) {
  const auto unknown = CreateCpuDevice({.threads = 1, .kernels = "neon"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(), HasSubstr("'neon'"));
  EXPECT_THAT(unknown.status().message(), HasSubstr("scalar"));

  const auto available = AvailableKernels();
  if (available.back() == "amx") GTEST_SKIP() << "this machine has every kernel set";
  const auto missing = CreateCpuDevice({.threads = 1, .kernels = "amx"});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.status().message(), HasSubstr("'amx'"));
  EXPECT_THAT(missing.status().message(), HasSubstr(available.back()));
}

TEST(CpuDevice, LatencyWithoutARateIsRefused) {
  EXPECT_FALSE(CreateCpuDevice({.threads = 1, .link = Link(0, 10)}).ok());
  EXPECT_FALSE(CreateCpuDevice({.threads = 1, .link = Link(1'000, -1)}).ok());
}

TEST(CpuDevice, EmulatedLinkCountsItsOwnTime) {
  const auto device = CreateCpuDevice({.threads = 1, .link = Link(8'000'000'000, 3'000)});
  ASSERT_TRUE(device.ok());
  EXPECT_TRUE((*device)->properties().link.emulated);
  std::vector<std::byte> from(400'000), to(400'000);
  const int64_t begin_ns = NowNs();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(
        (*device)->CopyToDevice(StreamKind::kTransfer, to.data(), from.data(), from.size()).ok());
  }
  const Deadline soon = Deadline::AfterMs(30'000);
  ASSERT_TRUE((*device)->SynchronizeStream(StreamKind::kTransfer, soon).ok());
  const int64_t wall_ns = NowNs() - begin_ns;
  const TransferCounters counters = (*device)->transfer_counters();
  EXPECT_EQ(counters.copies, 10u);
  EXPECT_EQ(counters.bytes, 4'000'000u);
  EXPECT_EQ(counters.busy_ns, 500'000u);
  EXPECT_GE(wall_ns, 503'000);  // no copy arrives before the link could have brought it
}

TEST(CpuDevice, WaitForACopyEndsAtTheDeadline) {
  const auto device = CreateCpuDevice({.threads = 1, .link = Link(1'000'000, 0)});
  ASSERT_TRUE(device.ok());
  std::vector<std::byte> from(300'000), to(300'000);  // 300 ms on the link
  const auto before = (*device)->CreateEvent();
  const auto after = (*device)->CreateEvent();
  ASSERT_TRUE(before.ok() && after.ok());
  ASSERT_TRUE((*device)->Record(*before, StreamKind::kTransfer).ok());
  ASSERT_TRUE(
      (*device)->CopyToDevice(StreamKind::kTransfer, to.data(), from.data(), from.size()).ok());
  ASSERT_TRUE((*device)->Record(*after, StreamKind::kTransfer).ok());
  const Status status = (*device)->SynchronizeStream(StreamKind::kTransfer, Deadline::AfterMs(1));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("transfer"));
  EXPECT_FALSE((*device)->IsDone(*after));
  EXPECT_TRUE((*device)->IsDone(*before)) << "an earlier point does not wait for later work";
  EXPECT_TRUE((*device)->Synchronize(*after, Deadline::AfterMs(30'000)).ok());
  EXPECT_TRUE((*device)->IsDone(*after));
}

}  // namespace
}  // namespace expertflow
