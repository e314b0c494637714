// What only the fake network has: virtual time, seeds, kills, partitions. What it shares with every
// transport is in tests/conformance.
#include "transport/fake_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

namespace expertflow {
namespace {

constexpr ProcessId kA{0};
constexpr ProcessId kB{1};
constexpr ProcessId kC{2};

struct Net {
  explicit Net(const FakeNetworkOptions& options) : network(options) {
    for (const ProcessId id : {kA, kB, kC}) transports[id] = network.Create(id);
    for (auto& [a, from] : transports) {
      for (auto& [b, to] : transports) {
        if (a == b) continue;
        EXPECT_TRUE(from->Connect(b, to->LocalAddress()).ok());
      }
    }
  }
  void Send(ProcessId from, ProcessId to, uint8_t value) {
    EXPECT_TRUE(transports[from]->Send(to, std::vector<uint8_t>{value}).ok());
  }
  std::vector<TransportEvent> Poll(ProcessId at) {
    std::vector<TransportEvent> events;
    EXPECT_TRUE(transports[at]->Poll(Deadline::AtNs(0), {}, &events).ok());
    return events;
  }

  FakeNetwork network;
  std::map<ProcessId, std::unique_ptr<Transport>> transports;
};

// The order in which C sees 20 messages of A and of B, negative for B.
std::vector<int> ArrivalOrder(uint64_t seed) {
  Net net({.seed = seed, .delay_ns_min = 0, .delay_ns_max = 1000});
  for (uint8_t i = 1; i <= 20; ++i) {
    net.Send(kA, kC, i);
    net.Send(kB, kC, i);
  }
  std::vector<int> order;
  for (int64_t t = 0; t <= 1000; ++t) {
    for (const TransportEvent& event : net.Poll(kC)) {
      order.push_back(event.peer == kA ? event.message[0] : -event.message[0]);
    }
    net.network.AdvanceNs(1);
  }
  return order;
}

TEST(FakeNetwork, ASeedGivesOneOrderAndPeersOvertakeEachOther) {
  const std::vector<int> order = ArrivalOrder(1);
  ASSERT_EQ(order.size(), 40u);
  EXPECT_EQ(order, ArrivalOrder(1));
  EXPECT_NE(order, ArrivalOrder(2));
  for (const int sign : {1, -1}) {
    int expected = 1;
    for (const int value : order) {
      if (value * sign < 0) continue;
      EXPECT_EQ(value * sign, expected++);
    }
  }
}

TEST(FakeNetwork, NothingArrivesBeforeItsTime) {
  Net net({.delay_ns_min = 100, .delay_ns_max = 100});
  net.Send(kA, kB, 1);
  EXPECT_EQ(net.network.NextDueNs(), 100);
  net.network.AdvanceNs(99);
  EXPECT_TRUE(net.Poll(kB).empty());
  net.network.AdvanceNs(1);
  EXPECT_EQ(net.Poll(kB).size(), 1u);
  EXPECT_EQ(net.network.NextDueNs(), -1);
}

TEST(FakeNetwork, AKilledProcessIsReportedAfterWhatItSent) {
  Net net({.delay_ns_min = 10, .delay_ns_max = 10, .detection_ns = 1000});
  net.network.KillAt(kA, 50);
  net.Send(kA, kB, 1);
  net.network.AdvanceNs(50);
  EXPECT_TRUE(net.transports[kA]->Send(kB, std::vector<uint8_t>{2}).ok());  // it is dead: lost
  EXPECT_TRUE(net.transports[kB]->Send(kA, std::vector<uint8_t>{3}).ok());
  auto events = net.Poll(kB);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].message[0], 1);
  net.network.AdvanceNs(1000);
  events = net.Poll(kB);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, TransportEvent::Kind::kPeerDown);
  EXPECT_EQ(net.Poll(kC).size(), 1u);
  EXPECT_TRUE(net.Poll(kA).empty());
  EXPECT_EQ(net.transports[kB]->Send(kA, std::vector<uint8_t>{3}).code(), StatusCode::kUnavailable);
}

TEST(FakeNetwork, APartitionIsSilentAndHeals) {
  Net net({});
  net.network.Partition(kA, kB);
  net.Send(kA, kB, 1);
  net.Send(kA, kC, 2);
  net.network.AdvanceNs(1'000'000'000);
  EXPECT_TRUE(net.Poll(kB).empty());
  EXPECT_EQ(net.Poll(kC).size(), 1u);
  EXPECT_FALSE(net.transports[kA]->Flushed());
  net.network.Heal(kA, kB);
  EXPECT_EQ(net.Poll(kB).size(), 1u);
  EXPECT_TRUE(net.transports[kA]->Flushed());
}

TEST(FakeNetwork, ConnectsThreadsWithoutVirtualTime) {
  Net net({});
  constexpr int kRounds = 1000;
  std::thread echo([&] {
    for (int seen = 0; seen < kRounds;) {
      std::vector<TransportEvent> events;
      net.transports[kB]->Poll(Deadline::AfterMs(20'000), {}, &events).ok();
      ASSERT_FALSE(events.empty());
      for (const TransportEvent& event : events) {
        net.transports[kB]->Send(event.peer, event.message).ok();
        ++seen;
      }
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    net.Send(kA, kB, static_cast<uint8_t>(i));
    std::vector<TransportEvent> events;
    ASSERT_TRUE(net.transports[kA]->Poll(Deadline::AfterMs(20'000), {}, &events).ok());
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].message[0], static_cast<uint8_t>(i));
  }
  echo.join();
}

}  // namespace
}  // namespace expertflow
