#include "device/cpu/link_pacer.h"

#include <gtest/gtest.h>

namespace expertflow::cpu {
namespace {

LinkProperties Link(uint64_t bytes_per_second, int64_t latency_ns) {
  LinkProperties link;
  link.bytes_per_second = bytes_per_second;
  link.latency_ns = latency_ns;
  return link;
}

TEST(LinkPacer, IdleLinkTakesLatencyAndTransfer) {
  LinkPacer pacer(Link(4'000'000'000, 10'000));
  EXPECT_EQ(pacer.TransferNs(4'000'000), 1'000'000);
  EXPECT_EQ(pacer.Submit(5'000'000, 4'000'000), 5'000'000 + 10'000 + 1'000'000);
}

TEST(LinkPacer, QueuedCopiesFollowWithoutAGap) {
  LinkPacer pacer(Link(4'000'000'000, 10'000));
  const int64_t first_ns = pacer.Submit(0, 4'000'000);
  for (int i = 1; i < 100; ++i) {
    // Submitted at any time while another is on the wire: its latency hides behind that one.
    EXPECT_EQ(pacer.Submit(i * 900'000, 4'000'000), first_ns + i * 1'000'000);
  }
}

TEST(LinkPacer, LateCallerFindsAnIdleLink) {
  LinkPacer pacer(Link(1'000'000'000, 500));
  EXPECT_EQ(pacer.Submit(0, 1'000), 1'500);
  EXPECT_EQ(pacer.Submit(1'001, 1'000), 1'001 + 1'000 + 500);
}

TEST(LinkPacer, IdleTimeIsNotSavedUp) {
  LinkPacer pacer(Link(1'000'000'000'000, 0));
  int64_t now_ns = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pacer.Submit(now_ns, 1'000'000), now_ns + 1'000);
    now_ns += 1'000'000;
  }
}

TEST(LinkPacer, LargeCopiesDoNotOverflow) {
  const LinkPacer pacer(Link(1'000'000'000, 0));
  EXPECT_EQ(pacer.TransferNs(size_t{1} << 40), int64_t{1} << 40);
}

}  // namespace
}  // namespace expertflow::cpu
