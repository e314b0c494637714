#include "device/cpu/link_pacer.h"

#include <gtest/gtest.h>

namespace expertflow::cpu {
namespace {

LinkProperties Link(uint64_t bytes_per_second, int64_t latency_ns) {
  return {bytes_per_second, latency_ns, true};
}

TEST(LinkPacer, IdleLinkAddsLatencyOnce) {
  LinkPacer pacer(Link(4'000'000'000, 10'000));
  EXPECT_EQ(pacer.TransferNs(4'000'000), 1'000'000);
  EXPECT_EQ(pacer.Submit(5'000'000, 4'000'000), 5'000'000 + 10'000 + 1'000'000);
}

TEST(LinkPacer, QueuedCopiesStartWhereTheLastOneEnded) {
  LinkPacer pacer(Link(4'000'000'000, 10'000));
  int64_t end_ns = pacer.Submit(0, 4'000'000);
  for (int i = 0; i < 100; ++i) {
    const int64_t woken_ns = end_ns + 30'000 + i * 7'000;  // later and later
    pacer.Return(woken_ns);
    const int64_t next_ns = pacer.Submit(woken_ns + 2'000, 4'000'000);
    EXPECT_EQ(next_ns, end_ns + 1'000'000);
    end_ns = next_ns;
  }
}

TEST(LinkPacer, CallerThatDoesOtherThingsFindsAnIdleLink) {
  LinkPacer pacer(Link(1'000'000'000, 500));
  const int64_t end_ns = pacer.Submit(0, 1'000);
  pacer.Return(end_ns);
  const int64_t later_ns = end_ns + LinkPacer::kTurnaroundNs + 1;
  EXPECT_EQ(pacer.Submit(later_ns, 1'000), later_ns + 500 + 1'000);
}

TEST(LinkPacer, SlowMemoryDoesNotSaveUpLinkTime) {
  LinkPacer pacer(Link(1'000'000'000'000, 0));
  int64_t now_ns = 0;
  for (int i = 0; i < 100; ++i) {
    pacer.Submit(now_ns, 1'000'000);  // 1 us on the link
    now_ns += 1'000'000;              // 1 ms in memory
    pacer.Return(now_ns);
  }
  EXPECT_EQ(pacer.Submit(now_ns, 1'000'000), now_ns - LinkPacer::kLagNsMax + 1'000);
}

TEST(LinkPacer, LargeCopiesDoNotOverflow) {
  const LinkPacer pacer(Link(1'000'000'000, 0));
  EXPECT_EQ(pacer.TransferNs(size_t{1} << 40), int64_t{1} << 40);
}

}  // namespace
}  // namespace expertflow::cpu
