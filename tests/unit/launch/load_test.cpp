// The load client of `bench serve`: when requests come, what answers say, what a report makes of
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cmath>
#include <cstdio>
#include <list>
#include <thread>

#include "common/unique_fd.h"
#include "launch/load/answer_reader.h"
#include "launch/load/arrivals.h"
#include "launch/load/load_client.h"
#include "launch/load/load_report.h"
#include "tests/loopback_listener.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

TEST(Arrivals, PoissonHasItsRateAndIsTheSameForASeed) {
  const Arrival each{0, 7, 9};
  const auto arrivals = PoissonArrivals(50, 5000, 3, each);
  ASSERT_EQ(arrivals.size(), 5000U);
  EXPECT_EQ(arrivals[0].at_ns, 0);
  EXPECT_EQ(arrivals[9].prompt_tokens, 7);
  EXPECT_EQ(arrivals[9].max_tokens, 9);
  // 100 s on average; the standard deviation is 1.4 s.
  EXPECT_NEAR(static_cast<double>(arrivals.back().at_ns) / 1e9, 100, 7);
  // Of the gaps between independent arrivals, e^-1 are longer than the average.
  int long_ones = 0;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    EXPECT_GE(arrivals[i].at_ns, arrivals[i - 1].at_ns);
    if (arrivals[i].at_ns - arrivals[i - 1].at_ns > 20'000'000) ++long_ones;
  }
  EXPECT_NEAR(long_ones, 5000 * std::exp(-1), 150);
  EXPECT_EQ(PoissonArrivals(50, 5000, 3, each)[77].at_ns, arrivals[77].at_ns);
  EXPECT_NE(PoissonArrivals(50, 5000, 4, each)[77].at_ns, arrivals[77].at_ns);
}

ArrivalScale Scale() {
  return {
      .time = 1, .lengths = 1, .count_max = 10, .prompt_tokens_max = 1000, .max_tokens_max = 50};
}

TEST(Arrivals, RecordingsOfBothKindsAreRead) {
  const auto csv = ParseArrivals(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9000000,4808,10\r\n"
      "2023-11-17 00:00:00.1500000,34,99\r\n",
      Scale());
  ASSERT_TRUE(csv.ok()) << csv.status().ToString();
  ASSERT_EQ(csv->size(), 2U);
  EXPECT_EQ((*csv)[0].at_ns, 0);
  EXPECT_EQ((*csv)[0].prompt_tokens, 1000);  // cut
  EXPECT_EQ((*csv)[1].at_ns, 250'000'000);
  EXPECT_EQ((*csv)[1].prompt_tokens, 34);
  EXPECT_EQ((*csv)[1].max_tokens, 50);

  ArrivalScale scale = Scale();
  scale.time = 0.5;
  scale.lengths = 0.1;
  scale.count_max = 2;
  const auto json = ParseArrivals(
      R"({"timestamp": 100, "input_length": 6758, "output_length": 500, "hash_ids": [0]}
{"timestamp": 3100, "input_length": 70, "output_length": 3}
{"timestamp": 4000, "input_length": 1, "output_length": 1})",
      scale);
  ASSERT_TRUE(json.ok()) << json.status().ToString();
  ASSERT_EQ(json->size(), 2U);
  EXPECT_EQ((*json)[1].at_ns, 1'500'000'000);
  EXPECT_EQ((*json)[0].prompt_tokens, 676);
  EXPECT_EQ((*json)[0].max_tokens, 50);
  EXPECT_EQ((*json)[1].max_tokens, 1);  // never none
}

TEST(Arrivals, BadRecordingsNameTheLine) {
  for (const char* line :
       {"x", "2023-11-16 18:17:03,1", "2023-11-16 18:17:03,a,1", "2023-11-16,1,1",
        "2023-11-16 18:17:03.123456789012,1,1", "2023-11-16 18:17:03,-1,1", "{", "{}",
        R"({"timestamp":-1,"input_length":1,"output_length":1})",
        R"({"timestamp":1e300,"input_length":1,"output_length":1})"}) {
    const auto arrivals =
        ParseArrivals("2023-11-16 18:17:00,5,5\n" + std::string(line) + "\n", Scale());
    ASSERT_FALSE(arrivals.ok()) << line;
    EXPECT_THAT(arrivals.status().message(), HasSubstr("line 2"));
  }
  EXPECT_FALSE(ParseArrivals("", Scale()).ok());
}

std::string Stream() {
  std::string stream =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string chunk :
       {"data: {\"text\": \"a\"}\n\n: x\n", "data: {\"text\":\"\"}\n\ndata: {\"content\" :\"b\"}\n",
        "\ndata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":12}}\n\n",
        "data: [DONE]\n\n", ""}) {
    char size[16];
    std::snprintf(size, sizeof(size), "%zx\r\n", chunk.size());
    stream += size + chunk + "\r\n";
  }
  return stream;
}

TEST(AnswerReader, ReadsAStreamHoweverItIsCut) {
  const std::string stream = Stream();
  for (size_t step = 1; step <= stream.size(); ++step) {
    AnswerReader reader;
    int pieces = 0;
    bool complete = false;
    for (size_t at = 0; at < stream.size(); at += step) {
      EXPECT_FALSE(complete) << step;
      const AnswerReader::Found found = reader.Push(stream.substr(at, step));
      EXPECT_FALSE(found.broken);
      pieces += found.pieces;
      complete = found.complete;
    }
    EXPECT_TRUE(complete) << step;
    EXPECT_EQ(pieces, 2) << step;
    EXPECT_EQ(reader.prompt_tokens(), 7);
    EXPECT_EQ(reader.completion_tokens(), 12);
    EXPECT_TRUE(reader.ended() && reader.is_stream() && reader.keep_alive());
  }
}

TEST(AnswerReader, OtherAnswers) {
  AnswerReader whole;
  EXPECT_TRUE(whole
                  .Push("HTTP/1.1 429 No\r\nConnection: close\r\ncontent-length: 14\r\n\r\n"
                        "{\"error\":\"no\"}")
                  .complete);
  EXPECT_EQ(whole.status(), 429);
  EXPECT_TRUE(whole.has_error());
  EXPECT_FALSE(whole.keep_alive());
  AnswerReader until_close;
  EXPECT_FALSE(until_close.Push("HTTP/1.0 200 OK\r\n\r\nabc").complete);
  EXPECT_TRUE(until_close.CompleteAtClose());
  AnswerReader half;
  EXPECT_FALSE(half.Push("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").complete);
  EXPECT_FALSE(half.CompleteAtClose());
  AnswerReader noise;
  EXPECT_TRUE(noise.Push("SSH-2.0\r\n\r\n").broken);
  AnswerReader empty;
  EXPECT_TRUE(empty.Push("HTTP/1.1 204 No Content\r\n\r\n").complete);
}

TEST(LoadReport, PercentilesAreValuesAndTimesCountFromWhenARequestWasDue) {
  std::vector<float> values;
  for (int i = 100; i >= 1; --i) values.push_back(static_cast<float>(i));
  const Percentiles found = PercentilesOf(values);
  EXPECT_EQ(found.p50, 50);
  EXPECT_EQ(found.p99, 99);
  EXPECT_EQ(found.max, 100);
  EXPECT_EQ(PercentilesOf({3}).p50, 3);
  EXPECT_EQ(PercentilesOf({}).count, 0U);

  constexpr int64_t kMs = 1'000'000;
  std::vector<LoadOutcome> outcomes(4);
  // Due at 10, sent at 30: the wait counts.
  outcomes[0] = {.due_ns = 10 * kMs,
                 .sent_ns = 30 * kMs,
                 .first_ns = 110 * kMs,
                 .last_ns = 210 * kMs,
                 .done_ns = 220 * kMs,
                 .status = 200,
                 .ok = true,
                 .prompt_tokens = 5,
                 .completion_tokens = 11,
                 .gaps_ms = {40, 60}};
  outcomes[1] = outcomes[0];
  outcomes[1].first_ns = 20 * kMs;
  outcomes[1].last_ns = 30 * kMs;
  outcomes[2] = {.due_ns = 20 * kMs, .done_ns = 30 * kMs, .status = 503, .error = "why"};
  outcomes[3] = {.due_ns = 20 * kMs, .done_ns = 1010 * kMs, .status = 200};
  const LoadReport report = ReportOf(outcomes, {.ttft_ms = 50, .tpot_ms = 5});
  EXPECT_EQ(report.done, 2U);
  EXPECT_EQ(report.good, 1U);  // the first took 100 ms to begin
  EXPECT_NEAR(report.ttft_ms.max, 100, 1e-3);
  EXPECT_NEAR(report.tpot_ms.max, 10, 1e-3);
  EXPECT_NEAR(report.total_ms.max, 210, 1e-3);
  EXPECT_NEAR(report.lateness_ms.max, 20, 1e-3);
  EXPECT_EQ(report.gap_ms.count, 4U);
  EXPECT_EQ(report.completion_tokens, 22);
  EXPECT_NEAR(report.seconds, 1, 1e-9);
  EXPECT_EQ(report.concurrent_max, 4U);
  EXPECT_EQ(report.first_error, "why");
  ASSERT_EQ(report.errors.size(), 2U);
  EXPECT_EQ(report.errors[0].second + report.errors[1].second, 2U);
  EXPECT_EQ(ReportOf(outcomes, {}).good, 2U);
}

TEST(ServerUrl, IsReadFromAUrl) {
  const auto plain = ServerUrl::Parse("http://127.0.0.1:8000/");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host + "|" + plain->port + "|" + plain->path, "127.0.0.1|8000|");
  const auto path = ServerUrl::Parse("http://[::1]/a/b");
  ASSERT_TRUE(path.ok());
  EXPECT_EQ(path->host + "|" + path->port + "|" + path->path, "::1|80|/a/b");
  EXPECT_EQ(path->Text(), "http://[::1]:80/a/b");
  EXPECT_EQ(path->Head("GET", "/c", "k"),
            "GET /a/b/c HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: Bearer k\r\n");
  EXPECT_FALSE(path->secure);
  const auto secure = ServerUrl::Parse("https://a.example/v");
  ASSERT_TRUE(secure.ok());
  EXPECT_TRUE(secure->secure);
  EXPECT_EQ(secure->Text(), "https://a.example:443/v");
  for (const char* bad :
       {"", "127.0.0.1:8000", "ftp://a", "http://", "https://", "http://:80", "http://a:"}) {
    EXPECT_FALSE(ServerUrl::Parse(bad).ok()) << bad;
  }
}

// Answers nobody before all have asked: whoever waited for an answer before the next request would
// wait for ever.
TEST(LoadClient, SendsEachRequestAtItsTimeWhateverTheServerDoes) {
  constexpr size_t kRequests = 5;
  const LoopbackListener listener(16);
  std::thread server([&listener] {
    std::list<UniqueFd> clients;
    char buffer[256];
    for (size_t i = 0; i < kRequests; ++i) {
      clients.push_back(listener.Accept());
      (void)!::recv(clients.back().get(), buffer, sizeof(buffer), 0);
    }
    // The last one gets no answer.
    clients.pop_back();
    const std::string stream = Stream();
    for (const UniqueFd& client : clients) {
      (void)!::send(client.get(), stream.data(), stream.size(), MSG_NOSIGNAL);
    }
    for (const UniqueFd& client : clients) {
      (void)!::recv(client.get(), buffer, sizeof(buffer), 0);
    }
  });
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    requests.push_back({static_cast<int64_t>(i) * 5'000'000, "GET / HTTP/1.1\r\n\r\n"});
  }
  const auto target =
      ServerTarget::Find({"127.0.0.1", std::to_string(listener.port()), ""}, nullptr);
  ASSERT_TRUE(target.ok()) << target.status().ToString();
  const auto outcomes = RunLoad(*target, requests, {.timeout_ns = 20'000'000'000});
  server.join();
  ASSERT_TRUE(outcomes.ok()) << outcomes.status().ToString();
  ASSERT_EQ(outcomes->size(), kRequests);
  for (size_t i = 0; i < kRequests; ++i) {
    const LoadOutcome& outcome = (*outcomes)[i];
    EXPECT_EQ(outcome.due_ns, requests[i].at_ns);
    EXPECT_GE(outcome.sent_ns, outcome.due_ns);
    EXPECT_EQ(outcome.ok, i + 1 < kRequests) << i;
    if (i + 1 == kRequests) continue;
    EXPECT_EQ(outcome.completion_tokens, 12);
    EXPECT_GT(outcome.first_ns, requests.back().at_ns);
    EXPECT_EQ(outcome.status, 200);
  }
  const auto none = ServerTarget::Find({"127.0.0.1", "1", ""}, nullptr);
  ASSERT_TRUE(none.ok());
  const auto nobody = RunLoad(*none, {{0, "GET / HTTP/1.1\r\n\r\n"}}, {});
  ASSERT_TRUE(nobody.ok());
  EXPECT_FALSE((*nobody)[0].ok);
  EXPECT_THAT((*nobody)[0].error, HasSubstr("Connection refused; is the server running?"));
}

}  // namespace
}  // namespace expertflow
