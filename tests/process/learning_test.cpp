// What predictors of workers learn, in whole jobs: every worker has it, whoever dies, and no token
// depends on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "predictor/hybrid_file.h"
#include "tests/process/http_client.h"
#include "tests/process/program.h"
#include "tests/process/server.h"

namespace expertflow::testing {
namespace {

// Predictors are kept whatever they take, and batches go often.
std::vector<std::string> Options(const std::string& learning, std::vector<std::string> more) {
  more.insert(more.end(), {"--expert-memory", "25%", "--policy-time", "1000000",
                           "--heartbeat-interval", "50ms", "--learning", learning});
  return more;
}

std::string Text(const Server& server, const std::string& prompt, int tokens) {
  const std::string answer =
      server.Post("/v1/completions", R"({"prompt":")" + prompt +
                                         R"(","temperature":0,"ignore_eos":true,"max_tokens":)" +
                                         std::to_string(tokens) + "}");
  EXPECT_EQ(StatusOf(answer), 200);
  return JoinedStrings(answer, "text");
}

nlohmann::json StatusJson(const Server& server) {
  const std::string answer = server.Get("/v1/expertflow/status");
  const auto json = nlohmann::json::parse(answer.substr(answer.find('{')), nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << answer;
  return json.is_discarded() ? nlohmann::json() : json;
}

// All workers have the latest version, which has everything.
bool AllKnow(const Server& server, size_t workers) {
  const nlohmann::json status = StatusJson(server);
  if (status["workers"].size() != workers || status["learning"]["version"] == 0) return false;
  for (const auto& worker : status["workers"]) {
    if (worker["stats"]["predictor_version"] != status["learning"]["version"]) return false;
  }
  return true;
}

TEST(LearningTest, EveryWorkerHasWhatOneOfThemLearnsAndTheTextStaysTheSame) {
  std::string expected;
  for (const char* learning : {"off", "worker", "job"}) {
    Server server(Options(learning, {"--workers", "2"}));
    const std::string text = Text(server, "The lighthouse keeper", 80);
    if (expected.empty()) expected = text;
    EXPECT_EQ(text, expected) << learning;
    if (std::string(learning) == "job") {
      // One of them has not run anything.
      EXPECT_TRUE(Eventually(
          [&] { return StatusJson(server)["learning"]["tokens"] > 0 && AllKnow(server, 2); }));
      const nlohmann::json status = StatusJson(server);
      EXPECT_GT(status["learning"]["leaves"], 0);
      EXPECT_EQ(status["learning"]["recall"][0]["distance"], 1);
    } else {
      EXPECT_EQ(StatusJson(server)["learning"]["version"], 0) << learning;
    }
    server.ExpectEnds();
  }
}

TEST(LearningTest, OneLeadForTheJobFollowsWhatWorkersMeasure) {
  std::string expected;
  for (const char* control : {"worker", "job"}) {
    Server server(
        Options("job", {"--workers", "2", "--link", "1GB/s", "--stride-control", control}));
    const std::string text = Text(server, "The lighthouse keeper", 150);
    if (expected.empty()) expected = text;
    EXPECT_EQ(text, expected);
    nlohmann::json status = StatusJson(server);
    if (std::string(control) == "worker") {
      EXPECT_EQ(status["stride"]["stride"], 0);
      server.ExpectEnds();
      continue;
    }
    EXPECT_GT(status["stride"]["rounds"], 0);
    EXPECT_GE(status["stride"]["stride"], 1);
    EXPECT_NE(status["stride"]["reason"], "start");
    EXPECT_EQ(status["stride"]["moves"][0]["reason"], "start");
    // It outlives those that it was measured by.
    const nlohmann::json before = status["stride"]["number"];
    server.program().Kill("expertflow worker");
    EXPECT_EQ(Text(server, "The lighthouse keeper", 150), expected);
    EXPECT_GE(StatusJson(server)["stride"]["number"], before);
    server.ExpectEnds();
  }
}

// A predictor that says the opposite of what it was fitted to.
std::string SpoiltPredictor() {
  auto file = ReadHybrid(kModel + "/predictor.efp");
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  HybridModel& model = file->model;
  for (ByteMatrix& probe : model.probe[0]) {
    for (float& scale : probe.scale) scale = -scale;
  }
  std::fill(model.forest_probe[0].leaf.begin(), model.forest_probe[0].leaf.end(), 0.0f);
  const std::string path = ::testing::TempDir() + "spoilt-" + std::to_string(::getpid()) + ".efp";
  EXPECT_TRUE(WriteFileAtomically(path, EncodeHybrid(*file)).ok());
  return path;
}

// Recall of the first tokens of a worker that takes the place of one that was killed.
double RecallOfTheReplacement(const std::string& predictor, const std::string& learning) {
  Server server(Options(learning, {"--workers", "1", "--predictor", predictor, "--stride", "1"}));
  Text(server, "The lighthouse keeper", 200);
  // That the pre-gate is better.
  const auto knows = [&] {
    return learning != "job" ||
           (StatusJson(server)["learning"]["recall"][0]["falls_back"] == true &&
            AllKnow(server, 1));
  };
  EXPECT_TRUE(Eventually(knows));
  server.program().Kill("expertflow worker");
  EXPECT_TRUE(Eventually([&] {
    const nlohmann::json workers = StatusJson(server)["workers"];
    return workers.size() == 1 && workers[0]["ready"] == true && workers[0]["stats"]["steps"] == 0;
  }));
  EXPECT_TRUE(Eventually(knows));
  Text(server, "The lighthouse", 15);
  const nlohmann::json stats = StatusJson(server)["workers"][0]["stats"];
  EXPECT_EQ(stats["predictor_on"], true);
  server.ExpectEnds();
  return stats["prefetch_correct"].get<double>() / stats["prefetch_routed"].get<double>();
}

// The lost one had found out that the pre-gate is better, which takes some tokens.
TEST(LearningTest, AReplacementPredictsBetterWithWhatOthersLearnt) {
  const std::string predictor = SpoiltPredictor();
  const double alone = RecallOfTheReplacement(predictor, "worker");
  const double together = RecallOfTheReplacement(predictor, "job");
  EXPECT_GT(together, alone + 0.2);
  std::filesystem::remove(predictor);
}

}  // namespace
}  // namespace expertflow::testing
