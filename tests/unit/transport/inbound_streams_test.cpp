#include "transport/inbound_streams.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

constexpr ProcessId kPeer{3};

std::vector<uint8_t> Taken(InboundStreams* streams) {
  std::vector<TransportEvent> events;
  streams->TakeReady(&events);
  std::vector<uint8_t> values;
  for (const TransportEvent& event : events) values.push_back(event.message.at(0));
  return values;
}

using Values = std::vector<uint8_t>;

TEST(InboundStreams, RestoresOrder) {
  InboundStreams streams;
  streams.Open(kPeer);
  streams.Put(kPeer, 1, 1, {1});
  streams.Put(kPeer, 1, 2, {2});
  EXPECT_EQ(Taken(&streams), Values{});
  streams.Put(kPeer, 1, 0, {0});
  EXPECT_EQ(Taken(&streams), (Values{0, 1, 2}));
  streams.Put(kPeer, 1, 3, {3});
  EXPECT_EQ(Taken(&streams), Values{3});
}

TEST(InboundStreams, HoldsAnUnknownSenderUntilItIsOpened) {
  InboundStreams streams;
  streams.Put(kPeer, 1, 0, {0});
  EXPECT_EQ(Taken(&streams), Values{});
  streams.Open(kPeer);
  EXPECT_EQ(Taken(&streams), Values{0});
}

TEST(InboundStreams, ANewConnectionWaitsForTheEndOfTheOldOne) {
  InboundStreams streams;
  streams.Open(kPeer);
  streams.Put(kPeer, 1, 0, {0});
  streams.Put(kPeer, 2, 0, {10});
  EXPECT_EQ(Taken(&streams), Values{0});
  streams.Close(kPeer);
  streams.Put(kPeer, 1, 1, {1});  // late, of the old connection
  EXPECT_EQ(Taken(&streams), Values{});
  streams.Open(kPeer);
  EXPECT_EQ(Taken(&streams), Values{10});
}

TEST(InboundStreams, ARepeatedOrLostMessageBreaksTheStream) {
  InboundStreams streams;
  streams.Open(kPeer);
  streams.Put(kPeer, 1, 0, {0});
  EXPECT_EQ(Taken(&streams), Values{0});
  EXPECT_TRUE(streams.Broken().empty());
  streams.Put(kPeer, 1, 0, {0});
  ASSERT_EQ(streams.Broken().size(), 1u);
  EXPECT_EQ(streams.Broken()[0].first, kPeer);
  streams.Close(kPeer);
  EXPECT_TRUE(streams.Broken().empty());
  streams.Open(kPeer);
  streams.Put(kPeer, 2, 0, {1});
  streams.Break(kPeer, 2, Unavailable("lost"));
  EXPECT_EQ(Taken(&streams), Values{1});  // what was complete still counts
  EXPECT_EQ(streams.Broken().size(), 1u);
}

TEST(InboundStreams, WhatIsHeldIsBounded) {
  InboundStreams streams;
  const std::vector<uint8_t> half(InboundStreams::kEarlyBytesMax / 2 + 1);
  streams.Put(kPeer, 1, 0, half);
  streams.Put(ProcessId(4), 1, 0, half);  // the bound is for all unknown senders together
  streams.Open(kPeer);
  streams.Open(ProcessId(4));
  ASSERT_EQ(streams.Broken().size(), 1u);
  EXPECT_EQ(streams.Broken()[0].first, ProcessId(4));
  EXPECT_EQ(streams.Broken()[0].second.code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace expertflow
