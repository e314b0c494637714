#include "transport/rendezvous.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "transport/rendezvous_protocol.h"
#include "transport/tcp_socket.h"

namespace expertflow {
namespace {

constexpr int64_t kRendezvousTestNs = 20'000'000'000;

ProcessInfo Info(const std::string& host) {
  ProcessInfo info;
  info.host = host;
  info.address = "address of " + host;
  return info;
}

class Rendezvous : public ::testing::Test {
 protected:
  void Listen(RendezvousOptions options) {
    options.address = "127.0.0.1:0";
    options.secret = "correct horse";
    options.first_id = ProcessId(10);
    auto server = RendezvousServer::Listen(options);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
    server_->SetMembers({{ProcessId(0), Info("coordinator")}});
  }
  // Serves until `done` is set by the joiner's thread, as the coordinator's loop does.
  void ServeUntil(const std::atomic<bool>& done) {
    const Deadline deadline = Deadline::AfterNs(kRendezvousTestNs);
    while (!done && !deadline.Passed()) {
      pollfd waiting{server_->fd(), POLLIN, 0};
      if (::poll(&waiting, 1, 5) <= 0) continue;
      for (Member& member : server_->HandleReadable()) joined_.push_back(std::move(member));
    }
    EXPECT_TRUE(done);
  }
  Result<std::vector<Member>> Join(const std::string& secret, const std::string& host) {
    RendezvousWireUp wireup(server_->address(), secret);
    Result<std::vector<Member>> members = Internal("not run");
    std::atomic<bool> done{false};
    std::thread joiner([&] {
      members = wireup.Exchange(Info(host), Deadline::AfterNs(kRendezvousTestNs));
      done = true;
    });
    ServeUntil(done);
    joiner.join();
    last_id_ = wireup.self();
    return members;
  }

  std::unique_ptr<RendezvousServer> server_;
  std::vector<Member> joined_;
  ProcessId last_id_;
};

TEST_F(Rendezvous, AJoinerGetsAnIdAndTheMembers) {
  Listen({});
  const auto members = Join("correct horse", "late");
  ASSERT_TRUE(members.ok()) << members.status().ToString();
  EXPECT_EQ(last_id_, ProcessId(10));
  ASSERT_EQ(members->size(), 2u);
  EXPECT_EQ((*members)[0].id, ProcessId(0));
  EXPECT_EQ((*members)[0].info.address, "address of coordinator");
  EXPECT_EQ((*members)[1].id, ProcessId(10));
  ASSERT_EQ(joined_.size(), 1u);
  EXPECT_EQ(joined_[0].id, ProcessId(10));
  EXPECT_EQ(joined_[0].info.host, "late");
  ASSERT_TRUE(Join("correct horse", "later").ok());
  EXPECT_EQ(last_id_, ProcessId(11));
}

TEST_F(Rendezvous, AWrongSecretIsNamedOnBothSides) {
  Listen({});
  ::testing::internal::CaptureStderr();
  const auto members = Join("wrong", "stranger");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(members.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(members.status().message().find("wrong job secret"), std::string::npos);
  EXPECT_NE(log.find("wrong job secret"), std::string::npos) << log;
  EXPECT_TRUE(joined_.empty());
  EXPECT_TRUE(Join("correct horse", "friend").ok());
}

TEST_F(Rendezvous, AServerThatDoesNotKnowTheSecretIsNotTrusted) {
  // It cannot check the joiner's proof, and says that all is well.
  auto listener = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  const Deadline deadline = Deadline::AfterNs(kRendezvousTestNs);
  std::thread impostor([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    ASSERT_GT(::poll(&waiting, 1, 10'000), 0);
    const UniqueFd fd(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK));
    namespace rv = rendezvous;
    WriteAll(fd.get(), rv::Encode(rv::Kind::kChallenge, rv::Challenge{"abcdefghijklmnop"}),
             deadline)
        .ok();
    std::vector<uint8_t> ignored;
    ReadSome(fd.get(), &ignored, deadline).ok();
    rv::JoinReply reply;
    reply.id = 1;
    reply.proof = "anything";
    WriteAll(fd.get(), rv::Encode(rv::Kind::kJoinReply, reply), deadline).ok();
  });
  RendezvousWireUp wireup(LocalAddressOf(listener->get()), "correct horse");
  const auto members = wireup.Exchange(Info("late"), deadline);
  impostor.join();
  EXPECT_EQ(members.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(members.status().message().find("does not know the job secret"), std::string::npos);
}

TEST_F(Rendezvous, AServerOfAnotherVersionIsNamedAtOnce) {
  auto listener = ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  const Deadline deadline = Deadline::AfterNs(kRendezvousTestNs);
  std::thread newer([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    ASSERT_GT(::poll(&waiting, 1, 10'000), 0);
    const UniqueFd fd(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK));
    const auto frame = wire::EncodeFrame({rendezvous::kMagic, kProtocolVersion + 1, 1, 0},
                                         rendezvous::Challenge{"abcdefghijklmnop"});
    WriteAll(fd.get(), frame, deadline).ok();
    std::vector<uint8_t> ignored;
    ReadSome(fd.get(), &ignored, deadline).ok();
  });
  RendezvousWireUp wireup(LocalAddressOf(listener->get()), "correct horse");
  const auto members = wireup.Exchange(Info("late"), deadline);
  newer.join();
  EXPECT_EQ(members.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(members.status().message().find("one version"), std::string::npos)
      << members.status().message();
}

TEST_F(Rendezvous, SilentAndSlowClientsBlockNobodyAndAreDropped) {
  Listen({.handshakes_max = 2, .handshake_ns = 300'000'000});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 4; ++i) {
    auto fd = ConnectTcp(server_->address(), Deadline::AfterNs(kRendezvousTestNs));
    ASSERT_TRUE(fd.ok());
    silent.push_back(*std::move(fd));
  }
  // The header of a request whose rest never comes.
  const uint8_t part[] = {'E', 'F', 'F', 'J', 1, 0, 2, 0, 50, 0, 0, 0, 7};
  ASSERT_EQ(::send(silent[0].get(), part, sizeof(part), 0), static_cast<ssize_t>(sizeof(part)));
  // All places are taken by them: the joiner waits in the backlog until they are dropped.
  const auto members = Join("correct horse", "friend");
  ASSERT_TRUE(members.ok()) << members.status().ToString();
  EXPECT_EQ(joined_.size(), 1u);
}

TEST_F(Rendezvous, GarbageIsRefused) {
  Listen({});
  const std::vector<std::vector<uint8_t>> inputs = {
      std::vector<uint8_t>(100, 'G'),
      {'E', 'F', 'F', 'J', 1, 0, 2, 0, 0xff, 0xff, 0xff, 0xff},              // longer than allowed
      {'E', 'F', 'F', 'J', 9, 0, 2, 0, 0, 0, 0, 0},                          // version
      {'E', 'F', 'F', 'J', 1, 0, 3, 0, 0, 0, 0, 0},                          // kind
      {'E', 'F', 'F', 'J', 1, 0, 2, 0, 4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},  // count
  };
  for (const auto& input : inputs) {
    auto fd = ConnectTcp(server_->address(), Deadline::AfterNs(kRendezvousTestNs));
    ASSERT_TRUE(fd.ok());
    ASSERT_TRUE(WriteAll(fd->get(), input, Deadline::AfterNs(kRendezvousTestNs)).ok());
    std::atomic<bool> closed{false};
    std::thread reader([&] {
      std::vector<uint8_t> bytes;
      while (ReadSome(fd->get(), &bytes, Deadline::AfterNs(kRendezvousTestNs)).ok()) {
      }
      closed = true;
    });
    ServeUntil(closed);
    reader.join();
  }
  EXPECT_TRUE(joined_.empty());
  EXPECT_TRUE(Join("correct horse", "friend").ok());
}

TEST_F(Rendezvous, AJoinerKeepsItsDeadline) {
  std::string address;
  {
    auto listener = ListenTcp("127.0.0.1:0");
    ASSERT_TRUE(listener.ok());
    address = LocalAddressOf(listener->get());
    // It listens but never answers.
    RendezvousWireUp silent(address, "secret");
    EXPECT_EQ(silent.Exchange(Info("late"), Deadline::AfterMs(50)).status().code(),
              StatusCode::kDeadlineExceeded);
  }
  RendezvousWireUp nobody(address, "secret");
  EXPECT_EQ(nobody.Exchange(Info("late"), Deadline::AfterMs(50)).status().code(),
            StatusCode::kDeadlineExceeded);
}

TEST(RendezvousOptions, BadAddressesAndSecretsAreRefused) {
  for (const std::string address : {"nohost", "127.0.0.1:", "127.0.0.1:http", "not a host:1"}) {
    EXPECT_EQ(
        RendezvousServer::Listen({.address = address, .secret = "s", .first_id = ProcessId(1)})
            .status()
            .code(),
        StatusCode::kInvalidArgument)
        << address;
  }
  for (const std::string& secret : {std::string(), std::string(257, 'x'), std::string("a\0b", 3)}) {
    EXPECT_EQ(RendezvousServer::Listen(
                  {.address = "127.0.0.1:0", .secret = secret, .first_id = ProcessId(1)})
                  .status()
                  .code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace expertflow
