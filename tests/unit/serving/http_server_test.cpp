#include "tests/unit/serving/http_server_testing.h"

#include <gmock/gmock.h>

namespace expertflow {
namespace {

using ::testing::HasSubstr;

TEST_F(HttpServerTest, KeepsTheConnectionAndTakesRequestsInPieces) {
  Start();
  const UniqueFd client = Connect();
  Write(client, "GET /a?b=c HTTP/1.1\r\nHost: x\r\n");
  server_->HandleEvents();
  Write(client, "\r\n");
  EXPECT_THAT(Read(client, "GET /a "), HasSubstr("HTTP/1.1 200 OK\r\n"));
  Write(client, "POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  server_->HandleEvents();
  Write(client, "2\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(Read(client, "POST /b abcde"), HasSubstr("keep-alive"));
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  const UniqueFd client = Connect();
  Write(client,
        "GET /later HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n"
        "GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(Until([&] { return echo_.requests.size() == 1; }));
  server_->HandleEvents();
  EXPECT_EQ(echo_.requests.size(), 1U);
  server_->Respond(echo_.requests[0].connection, {.body = "first"});
  const std::string all = Read(client, "");
  EXPECT_LT(all.find("first"), all.find("GET /2 "));
  EXPECT_LT(all.find("GET /2 "), all.find("GET /3 "));
  EXPECT_TRUE(all.ends_with("<closed>")) << all;
}

TEST_F(HttpServerTest, EveryAnswerHasAnIdAndGoesOnWithTheCallersTrace) {
  Start();
  const UniqueFd client = Connect();
  const std::string trace = "0123456789abcdef0123456789abcdef";
  Write(client, "GET /later HTTP/1.1\r\nHost: x\r\nTraceParent: 00-" + trace +
                    "-00f067aa0ba902b7-01\r\n\r\n");
  ASSERT_TRUE(Until([&] { return echo_.requests.size() == 1; }));
  const HttpRequest first = echo_.requests[0];
  EXPECT_EQ(first.id.size(), 16U);
  EXPECT_EQ(first.trace.trace_id, trace);
  server_->StartStream(first.connection, "text/event-stream");
  server_->EndStream(first.connection);
  const std::string streamed = Read(client, "\r\n0\r\n\r\n");
  EXPECT_THAT(streamed, HasSubstr("X-Request-Id: " + first.id + "\r\n"));
  EXPECT_THAT(streamed, HasSubstr("traceparent: 00-" + trace + "-" + first.id + "-01\r\n"));
  Write(client, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string answer = Read(client, "GET /a ");
  EXPECT_NE(echo_.requests[1].id, first.id);
  EXPECT_THAT(answer, HasSubstr("X-Request-Id: " + echo_.requests[1].id + "\r\n"));
  EXPECT_EQ(answer.find("traceparent"), std::string::npos);
}

TEST(TraceContextTest, OnlyAProperHeaderCounts) {
  const std::string good = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
  EXPECT_EQ(ParseTraceparent(good).trace_id, "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(ParseTraceparent(good).flags, "01");
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char c : {'"', 'A', '-', 'g'}) {
      std::string bad = good;
      if (bad[i] == c) continue;
      bad[i] = c;
      EXPECT_EQ(ParseTraceparent(bad).trace_id, "") << bad;
    }
  }
  const std::string zeros(32, '0');
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "-00", "00-" + zeros + good.substr(35),
        good.substr(0, 36) + "0000000000000000-01", "ff" + good.substr(2),
        "01" + good.substr(2) + "x"}) {
    EXPECT_EQ(ParseTraceparent(bad).trace_id, "") << bad;
  }
  // A later version may say more.
  EXPECT_NE(ParseTraceparent("01" + good.substr(2) + "-more").trace_id, "");
  EXPECT_NE(ParseTraceparent("01" + good.substr(2)).trace_id, "");
}

TEST_F(HttpServerTest, StreamsAreChunkedAndPlainForOldClients) {
  Start();
  for (const char* version : {"1.1", "1.0"}) {
    const UniqueFd client = Connect();
    const size_t before = echo_.requests.size();
    Write(client,
          std::string("GET /later HTTP/") + version + "\r\nHost: x\r\nConnection: close\r\n\r\n");
    ASSERT_TRUE(Until([&] { return echo_.requests.size() > before; }));
    const HttpConnectionId id = echo_.requests.back().connection;
    server_->StartStream(id, "text/event-stream");
    server_->Send(id, "hello");
    server_->EndStream(id);
    EXPECT_TRUE(Read(client, "")
                    .ends_with(std::string(version) == "1.1"
                                   ? "\r\n\r\n5\r\nhello\r\n0\r\n\r\n<closed>"
                                   : "\r\n\r\nhello<closed>"));
  }
}

TEST_F(HttpServerTest, AClientThatGoesIsReportedOnceAndItsAnswerGoesNowhere) {
  Start();
  UniqueFd client = Connect();
  Write(client, "GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(Until([&] { return !echo_.requests.empty(); }));
  const linger reset{1, 0};
  ::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  client.Reset();
  ASSERT_TRUE(Until([&] { return !echo_.gone.empty(); }));
  EXPECT_EQ(echo_.gone[0], echo_.requests[0].connection);
  server_->Respond(echo_.gone[0], {.body = "late"});
  server_->HandleEvents();
  EXPECT_EQ(echo_.gone.size(), 1U);
  EXPECT_EQ(server_->stats().connections, 0U);
}

struct MalformedCase {
  std::string text;
  std::string status;
};

class MalformedTest : public HttpServerTest, public ::testing::WithParamInterface<MalformedCase> {};

TEST_P(MalformedTest, IsRefusedAndTheServerGoesOn) {
  Start({.request_bytes_max = 100});
  const UniqueFd client = Connect();
  Write(client, GetParam().text);
  const std::string answer = Read(client, "");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 " + GetParam().status));
  EXPECT_TRUE(answer.ends_with("<closed>"));
  EXPECT_TRUE(echo_.requests.empty());
  const UniqueFd next = Connect();
  Write(next, "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(Read(next, "/next"), HasSubstr("200"));
}

INSTANTIATE_TEST_SUITE_P(
    Requests, MalformedTest,
    ::testing::Values(
        MalformedCase{"nonsense\r\n\r\n", "400"}, MalformedCase{"GET / HTTP/9.9\r\n\r\n", "400"},
        MalformedCase{"GET / HTTP/1.1\r\nHost x\r\n\r\n", "400"},
        MalformedCase{"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"},
        MalformedCase{"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
        MalformedCase{"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
        MalformedCase{"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", "413"},
        MalformedCase{"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", "400"},
        MalformedCase{"GET / HTTP/1.1\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n", "431"},
        MalformedCase{std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8) + "\r\n\r\n", "400"}));

TEST_F(HttpServerTest, IdleAndSlowConnectionsMakeRoomTheLongestFirst) {
  Start({.connections_max = 3});
  const UniqueFd slow = Connect();
  Write(slow, "GET / HTTP/1.1\r\n");
  ASSERT_TRUE(Until([&] { return server_->stats().accepted == 1; }));
  const UniqueFd working = Connect();
  Write(working, "GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const UniqueFd idle = Connect();
  ASSERT_TRUE(Until([&] { return !echo_.requests.empty() && server_->stats().accepted == 3; }));
  for (int i = 0; i < 5; ++i) {
    const UniqueFd client = Connect();
    Write(client, "GET /new HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(Read(client, "/new"), HasSubstr("200 OK"));
    EXPECT_LE(server_->stats().connections, 3U);
  }
  EXPECT_EQ(Read(slow, ""), "<closed>");
  server_->Respond(echo_.requests[0].connection, {.body = "still here"});
  EXPECT_THAT(Read(working, "still here"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, ARequestThatDoesNotArriveInTimeIsGivenUp) {
  Start({.request_timeout_ns = 1'000'000'000, .idle_timeout_ns = 5'000'000'000});
  const UniqueFd slow = Connect();
  const UniqueFd idle = Connect();
  Write(slow, "GET / HT");
  ASSERT_TRUE(Until([&] { return server_->stats().accepted == 2; }));
  server_->HandleEvents();
  server_->OnTick(NowNs() + 2'000'000'000);
  EXPECT_THAT(Read(slow, ""), HasSubstr("408"));
  server_->OnTick(NowNs() + 6'000'000'000);
  EXPECT_EQ(Read(idle, ""), "<closed>");
}

TEST_F(HttpServerTest, AReaderThatStopsIsDropped) {
  Start({.write_timeout_ns = 1'000'000'000, .unsent_bytes_max = size_t{64} << 20});
  const UniqueFd client = Connect();
  Write(client, "GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(Until([&] { return !echo_.requests.empty(); }));
  const HttpConnectionId id = echo_.requests[0].connection;
  server_->StartStream(id, "text/event-stream");
  server_->Send(id, std::string(size_t{32} << 20, 'x'));
  EXPECT_FALSE(server_->Flushed());
  server_->OnTick(NowNs() + 500'000'000);
  EXPECT_TRUE(echo_.gone.empty());
  server_->OnTick(NowNs() + 2'000'000'000);
  EXPECT_EQ(echo_.gone.size(), 1U);
}

}  // namespace
}  // namespace expertflow
