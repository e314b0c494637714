// `expertflow serve` under mixed load while its workers are killed again and again. Half an hour;
// SOAK_SECONDS=120 in the environment makes it two minutes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tests/process/server.h"

namespace expertflow::testing {
namespace {

constexpr int64_t kSecondsDefault = 1800;
constexpr int64_t kKillSeconds = 20;
constexpr int kClients = 12;

int64_t Seconds() {
  const char* text = std::getenv("SOAK_SECONDS");
  return text == nullptr ? kSecondsDefault : std::max<int64_t>(1, std::atoll(text));
}

struct Question {
  std::string body;  // without its end
  std::string text;  // the answer
};

// Some begin alike, and all are greedy.
std::vector<Question> Questions() {
  std::vector<Question> questions;
  for (const std::string& beginning :
       {std::string("The lighthouse keeper"), std::string("In the beginning"),
        std::string("The lighthouse keeper walked down to the harbour, as he did each morning, and "
                    "looked for the boat that had gone out in the night, and")}) {
    for (const char* end : {"", " said", " went to the king of"}) {
      for (const int tokens : {1, 20, 90}) {
        questions.push_back({R"({"temperature":0,"ignore_eos":true,"max_tokens":)" +
                                 std::to_string(tokens) + R"(,"prompt":")" + beginning + end + "\"",
                             ""});
      }
    }
  }
  return questions;
}

// What a leak would let grow.
struct Footprint {
  int64_t resident_kib = 0;
  int64_t descriptors = 0;
  int64_t threads = 0;
};

Footprint FootprintOf(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  Footprint footprint;
  std::ifstream status(folder + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) footprint.resident_kib = std::atoll(line.c_str() + 6);
    if (line.starts_with("Threads:")) footprint.threads = std::atoll(line.c_str() + 8);
  }
  std::error_code gone;
  for (auto entry = std::filesystem::directory_iterator(folder + "/fd", gone);
       entry != std::filesystem::directory_iterator(); entry.increment(gone)) {
    ++footprint.descriptors;
  }
  return footprint;
}

// One client after the other: whole answers, streams, and streams that it leaves half-way.
class Load {
 public:
  Load(int port, const std::vector<Question>& questions) : port_(port), questions_(questions) {
    for (int i = 0; i < kClients; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t answered() const { return answered_; }
  // The first few wrong answers.
  std::vector<std::string> wrong() {
    const std::lock_guard lock(mutex_);
    return wrong_;
  }

 private:
  void Run(int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    while (!stop_) {
      const Question& question = questions_[random() % questions_.size()];
      const uint32_t kind = random() % 8;
      HttpClient client(port_);
      client.Post("/v1/completions", question.body + (kind < 4 ? "}" : ",\"stream\":true}"));
      if (kind == 7) {
        client.ReadUntil("\"text\"");
        client.Reset();
        continue;
      }
      const std::string answer = client.ReadUntil("", 300'000);
      const std::string text = JoinedStrings(kind < 4 ? answer : Unchunked(answer), "text");
      if (text == question.text) {
        ++answered_;
        continue;
      }
      const std::lock_guard lock(mutex_);
      if (wrong_.size() < 5) wrong_.push_back(question.body + "\n" + answer);
    }
  }

  const int port_;
  const std::vector<Question>& questions_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> answered_ = 0;
  std::mutex mutex_;
  std::vector<std::string> wrong_;
  std::vector<std::thread> threads_;
};

TEST(SoakTest, KilledWorkersLoseNoAnswerAndNothingGrows) {
  std::vector<Question> questions = Questions();
  {
    Server plain({"--workers", "1", "--prefix-cache", "off"});
    for (Question& question : questions) {
      question.text = JoinedStrings(plain.Post("/v1/completions", question.body + "}"), "text");
      ASSERT_NE(question.text, "");
    }
    plain.ExpectEnds();
  }
  // Too little memory for all, so that sequences are preempted, too.
  Server server({"--workers", "2", "--kv-memory", "3MB", "--expert-memory", "40%"});
  const std::vector<pid_t> kept = {server.program().pid(),
                                   server.program().Processes("expertflow coordinator").at(0),
                                   server.program().Processes("expertflow store").at(0)};
  const int64_t seconds = Seconds();
  const int64_t end_ns = NowNs() + seconds * 1'000'000'000;
  std::vector<Footprint> before;
  const std::vector<std::string> segments = Segments();
  int64_t kills = 0;
  {
    Load load(server.port(), questions);
    while (NowNs() < end_ns && load.wrong().empty()) {
      ::sleep(
          static_cast<unsigned>(std::min(kKillSeconds, (end_ns - NowNs()) / 1'000'000'000 + 1)));
      if (kills == 2) {  // warm
        for (const pid_t pid : kept) before.push_back(FootprintOf(pid));
      }
      server.program().Kill("expertflow worker");
      ++kills;
    }
    std::cout << seconds << " s, " << kills << " workers killed, " << load.answered()
              << " answers\n";
    for (const std::string& wrong : load.wrong()) ADD_FAILURE() << wrong;
    EXPECT_GT(load.answered(), seconds / 10);
  }
  EXPECT_TRUE(Eventually([&] { return server.Shows("expertflow_workers_ready 2"); }, 60'000));
  EXPECT_TRUE(server.Shows("expertflow_requests_total{outcome=\"failed\"} 0"));
  EXPECT_TRUE(server.Shows("expertflow_requests_running 0"));
  EXPECT_TRUE(server.Shows("expertflow_workers_lost_total " + std::to_string(kills)));
  EXPECT_EQ(Segments(), segments);
  for (size_t i = 0; i < before.size(); ++i) {
    const Footprint after = FootprintOf(kept[i]);
    std::cout << "resident KiB " << before[i].resident_kib << " to " << after.resident_kib
              << ", descriptors " << before[i].descriptors << " to " << after.descriptors
              << ", threads " << before[i].threads << " to " << after.threads << "\n";
    EXPECT_LE(after.resident_kib, before[i].resident_kib + 4096);
    EXPECT_LE(after.descriptors, before[i].descriptors + kClients);
    EXPECT_LE(after.threads, before[i].threads + 1);
  }
  server.ExpectEnds();
}

}  // namespace
}  // namespace expertflow::testing
