#include "transport/coordinator_link.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "transport/fake_transport.h"
#include "transport/wire.h"

namespace expertflow {
namespace {

constexpr ProcessId kCoordinator(0);
constexpr ProcessId kWorker(1);

class CoordinatorLinkTest : public testing::Test {
 protected:
  CoordinatorLinkTest()
      : coordinator_(network_.Create(kCoordinator)), worker_(network_.Create(kWorker)) {
    auto signals = SignalWatcher::Create();
    EXPECT_TRUE(signals.ok());
    signals_ = std::make_unique<SignalWatcher>(std::move(signals).value());
    EXPECT_TRUE(coordinator_->Connect(kWorker, FakeNetwork::AddressOf(kWorker)).ok());
  }

  // `host` elsewhere: no pidfd.
  std::vector<Member> Members(const std::string& host = "elsewhere") {
    Member member{.id = kCoordinator};
    member.info.role = ProcessRole::kCoordinator;
    member.info.host = host;
    member.info.address = FakeNetwork::AddressOf(kCoordinator);
    return {member};
  }
  CoordinatorLink Connect(int64_t silence_ns_max = 0) {
    auto link = CoordinatorLink::Connect(*worker_, *signals_, Members(), silence_ns_max);
    EXPECT_TRUE(link.ok()) << link.status().ToString();
    return std::move(link).value();
  }
  void SendShutdown() {
    EXPECT_TRUE(coordinator_->Send(kWorker, EncodeMessage(Shutdown{"enough"})).ok());
  }

  FakeNetwork network_;
  std::unique_ptr<Transport> coordinator_;
  std::unique_ptr<Transport> worker_;
  std::unique_ptr<SignalWatcher> signals_;
  std::vector<Message> messages_;
};

TEST_F(CoordinatorLinkTest, AJobWithoutCoordinatorIsRefused) {
  EXPECT_EQ(CoordinatorLink::Connect(*worker_, *signals_, {}, 0).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorLinkTest, ACoordinatorThatHasDiedOnThisHostIsUnavailable) {
  auto members = Members(HostName());
  members[0].info.boot_id = ReadBootId();
  members[0].info.pid = ::getpid();
  members[0].info.pid_start_ticks = 1;  // another process that had our pid
  EXPECT_EQ(CoordinatorLink::Connect(*worker_, *signals_, members, 0).status().code(),
            StatusCode::kUnavailable);
}

TEST_F(CoordinatorLinkTest, FIELD_53_WhatWasSentBeforeTheDeathIsReceivedFirst) {
  CoordinatorLink link = Connect();
  SendShutdown();
  network_.KillAt(kCoordinator, 0);
  ASSERT_TRUE(link.Receive(Deadline::AfterMs(1000), &messages_).ok());
  ASSERT_EQ(messages_.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(messages_[0]));
  EXPECT_EQ(link.Receive(Deadline::AfterMs(1000), &messages_).code(), StatusCode::kUnavailable);
  EXPECT_EQ(link.Receive(Deadline::AfterMs(1000), &messages_).code(), StatusCode::kUnavailable);
}

TEST_F(CoordinatorLinkTest, AMessageThatCannotBeReadEndsTheLink) {
  CoordinatorLink link = Connect();
  const uint8_t nonsense[] = {1, 2, 3};
  ASSERT_TRUE(coordinator_->Send(kWorker, nonsense).ok());
  SendShutdown();
  EXPECT_EQ(link.Receive(Deadline::AfterMs(1000), &messages_).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(messages_.empty());
}

TEST_F(CoordinatorLinkTest, ASignalComesAfterTheMessages) {
  CoordinatorLink link = Connect();
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);  // blocked, for the watcher
  SendShutdown();
  ASSERT_TRUE(link.Receive(Deadline::AfterMs(1000), &messages_).ok());
  EXPECT_EQ(messages_.size(), 1U);
  EXPECT_EQ(link.Receive(Deadline::AfterMs(1000), &messages_).code(), StatusCode::kCancelled);
}

TEST_F(CoordinatorLinkTest, FIELD_53_SilenceOfACoordinatorElsewhereCountsAsItsDeath) {
  CoordinatorLink link = Connect(/*silence_ns_max=*/40'000'000);
  ASSERT_TRUE(link.Receive(Deadline::AfterMs(1), &messages_).ok());
  const Status status = link.Receive(Deadline::AfterMs(20'000), &messages_);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("--heartbeat-timeout"), std::string::npos) << status.message();
}

TEST_F(CoordinatorLinkTest, SignsOfLifeAreTakenInAndBreakTheSilence) {
  CoordinatorLink link = Connect(/*silence_ns_max=*/2'000'000'000);
  ASSERT_TRUE(coordinator_->Send(kWorker, EncodeMessage(Heartbeat{})).ok());
  EXPECT_TRUE(link.Receive(Deadline::AfterMs(1000), &messages_).ok());
  EXPECT_TRUE(messages_.empty());
}

TEST_F(CoordinatorLinkTest, OurOwnPauseIsNotTheCoordinatorsSilence) {
  CoordinatorLink link = Connect(/*silence_ns_max=*/40'000'000);
  ::usleep(80'000);  // such as the time in which a worker builds its engine
  EXPECT_TRUE(link.Receive(Deadline::AfterMs(1), &messages_).ok());
}

TEST_F(CoordinatorLinkTest, AProcessThatIsTurnedAwayHearsWhy) {
  CoordinatorLink link = Connect();
  const auto code = static_cast<uint8_t>(StatusCode::kInvalidArgument);
  ASSERT_TRUE(coordinator_->Send(kWorker, EncodeMessage(FatalError{code, "another model"})).ok());
  const Status status = link.Receive(Deadline::AfterMs(1000), &messages_);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "another model");
}

TEST_F(CoordinatorLinkTest, APassedDeadlineIsNoError) {
  CoordinatorLink link = Connect();
  EXPECT_TRUE(link.Receive(Deadline::AfterMs(1), &messages_).ok());
  EXPECT_TRUE(messages_.empty());
}

}  // namespace
}  // namespace expertflow
