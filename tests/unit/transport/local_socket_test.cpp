#include "transport/local_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace expertflow {
namespace {

constexpr int64_t kTestNs = 20'000'000'000;

class LocalSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/expertflow_socket_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/job.sock";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Deadline Soon() const { return Deadline::AfterNs(kTestNs); }
  // A connected pair: first the client.
  std::pair<LocalConnection, LocalConnection> Pair(LocalServer* server) {
    auto client = LocalConnection::Connect(path_, Soon());
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    auto accepted = server->Accept();
    EXPECT_TRUE(accepted.ok() && accepted->has_value());
    return {*std::move(client), **std::move(accepted)};
  }

  std::string folder_;
  std::string path_;
};

TEST_F(LocalSocket, MessagesTravelBothWays) {
  auto server = LocalServer::Listen(path_);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto nobody = server->Accept();
  ASSERT_TRUE(nobody.ok());
  EXPECT_FALSE(nobody->has_value());

  auto [client, peer] = Pair(&*server);
  ASSERT_TRUE(client.Send(CancelRequest{42}).ok());
  ASSERT_TRUE(client.Send(StatusRequest{}).ok());
  std::vector<Message> messages;
  ASSERT_TRUE(peer.Receive(&messages).ok());
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(std::get<CancelRequest>(messages[0]).request, 42u);
  ASSERT_TRUE(peer.Send(StatusReply{"{}"}).ok());
  ASSERT_TRUE(peer.Send(MetricsReply{"m"}).ok());
  auto reply = client.ReceiveOne(Soon());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(std::get<StatusReply>(*reply).json, "{}");
  reply = client.ReceiveOne(Soon());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(std::get<MetricsReply>(*reply).text, "m");
  EXPECT_EQ(client.ReceiveOne(Deadline::AfterMs(5)).status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(LocalSocket, BigMessagesPassThroughSmallSocketBuffers) {
  auto server = LocalServer::Listen(path_);
  ASSERT_TRUE(server.ok());
  auto [client, peer] = Pair(&*server);
  const std::string text(size_t{20} << 20, 'x');
  ASSERT_TRUE(client.Send(TextDelta{1, text, {}}).ok());
  EXPECT_TRUE(client.wants_write());
  std::vector<Message> messages;
  const Deadline deadline = Soon();
  while (messages.empty() && !deadline.Passed()) {
    ASSERT_TRUE(client.Flush().ok());
    ASSERT_TRUE(peer.Receive(&messages).ok());
  }
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(std::get<TextDelta>(messages[0]).text, text);
  EXPECT_FALSE(client.wants_write());
}

TEST_F(LocalSocket, AQueueForASlowReaderIsBounded) {
  auto server = LocalServer::Listen(path_);
  ASSERT_TRUE(server.ok());
  auto [client, peer] = Pair(&*server);
  const TextDelta big{1, std::string(size_t{16} << 20, 'x'), {}};
  Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) status = client.Send(big);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(client.FlushAll(Deadline::AfterMs(5)).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(LocalSocket, AClosedPeerIsSeenAfterItsLastMessageAndRaisesNoSignal) {
  auto server = LocalServer::Listen(path_);
  ASSERT_TRUE(server.ok());
  auto [client, peer] = Pair(&*server);
  ASSERT_TRUE(peer.Send(StatusReply{"last"}).ok());
  peer.Close();
  Status status;
  for (int i = 0; i < 3; ++i) status = client.Send(StatusRequest{});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(client.ReceiveOne(Soon()).ok());
  EXPECT_EQ(client.ReceiveOne(Soon()).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(client.closed());
  std::vector<Message> messages;
  EXPECT_TRUE(client.Receive(&messages).ok());
  EXPECT_EQ(client.Send(StatusRequest{}).code(), StatusCode::kUnavailable);
}

TEST_F(LocalSocket, APeerThatSpeaksSomethingElseIsClosed) {
  auto server = LocalServer::Listen(path_);
  ASSERT_TRUE(server.ok());
  auto [client, peer] = Pair(&*server);
  const std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(::write(client.fd(), http.data(), http.size()), static_cast<ssize_t>(http.size()));
  std::vector<Message> messages;
  EXPECT_EQ(peer.Receive(&messages).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(peer.closed());
  EXPECT_TRUE(messages.empty());
}

TEST_F(LocalSocket, FIELD_49_AStaleSocketIsReplacedAndALiveOneIsNot) {
  {
    // What a killed server leaves: the file, and nobody behind it.
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_EQ(LocalConnection::Connect(path_, Soon()).status().code(), StatusCode::kNotFound);
  {
    auto server = LocalServer::Listen(path_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    auto second = LocalServer::Listen(path_);
    EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(LocalConnection::Connect(path_, Soon()).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(LocalConnection::Connect(path_, Soon()).status().code(), StatusCode::kNotFound);
}

TEST_F(LocalSocket, OtherFilesAndLongPathsAreRefused) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(LocalServer::Listen(path_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::exists(path_));
  const auto too_long = LocalServer::Listen(folder_ + "/" + std::string(120, 'x'));
  EXPECT_EQ(too_long.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(too_long.status().message().find("107"), std::string::npos);
  EXPECT_EQ(LocalServer::Listen(folder_ + "/missing/job.sock").status().code(),
            StatusCode::kNotFound);
}

TEST_F(LocalSocket, AServerRemovesOnlyItsOwnFile) {
  auto server = LocalServer::Listen(path_);
  ASSERT_TRUE(server.ok());
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  auto successor = LocalServer::Listen(path_);
  ASSERT_TRUE(successor.ok());
  { const LocalServer gone = *std::move(server); }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace expertflow
