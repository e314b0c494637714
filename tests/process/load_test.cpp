// `expertflow serve` under more clients than a test of every push can afford.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <fstream>
#include <iostream>
#include <list>
#include <nlohmann/json.hpp>

#include "tests/process/server.h"

namespace expertflow::testing {
namespace {

int64_t PeakKiB(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

// All of them decode in the same steps.
TEST(LoadTest, AThousandStreamsAtOnceAllEnd) {
  Server server({"--sequences-max", "1000", "--kv-memory", "1GiB"});
  Program bench({"bench", "serve", "--url", "http://127.0.0.1:" + std::to_string(server.port()),
                 "--requests", "1000", "--rate", "2000", "--prompt-tokens", "8", "--max-tokens",
                 "64", "--answer-timeout", "600s", "--json", "-"});
  EXPECT_EQ(bench.Wait(900'000), 0) << bench.err();
  const std::string out = bench.out();
  const auto json = nlohmann::json::parse(out.substr(out.find("\n{") + 1));
  EXPECT_EQ(json["done"], 1000);
  EXPECT_EQ(json["completion_tokens"], 64'000);
  EXPECT_GT(json["concurrent_max"], 900);
  const int64_t peak = PeakKiB(server.program().pid());
  EXPECT_GT(peak, 0);
  EXPECT_LT(peak, 128 << 10);
  std::cout << "gap ms p50 " << json["gap_ms"]["p50"] << " p99 " << json["gap_ms"]["p99"]
            << ", server's peak KiB " << peak << "\n";
  server.ExpectEnds();
}

TEST(LoadTest, TenThousandIdleAndSlowClientsDoNotStopService) {
  constexpr int kClients = 10'000;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kClients + 100) GTEST_SKIP() << "too few descriptors: " << limit.rlim_max;
  Server server;
  std::list<HttpClient> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back(server.port());
    ASSERT_TRUE(clients.back().connected()) << i;
    if (i % 2 == 0) clients.back().Send("POST /v1/completions HTTP/1.1\r\nContent-Le");
    if (i % 1000 == 999) {
      EXPECT_EQ(StatusOf(server.Post("/v1/completions", R"({"prompt":"a","max_tokens":2})")), 200);
    }
  }
  EXPECT_TRUE(
      server.Shows("expertflow_http_connections_accepted_total " + std::to_string(kClients + 11)));
  EXPECT_LT(PeakKiB(server.program().pid()), 256 << 10);
  server.ExpectEnds();
}

}  // namespace
}  // namespace expertflow::testing
