// A run and its simulation, by the tools.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/job_commands.h"

namespace expertflow::testing {
namespace {

TEST(AsRecordedTest, FIELD_04_TheSimulationDecidesAsTheRunDid) {
  const TestFolder folder;
  const std::string trace = folder.path() + "/run.eft";
  const std::string report = folder.path() + "/run.json";
  const std::vector<std::string> words = {"run",
                                          "--model",
                                          kModel,
                                          "-p",
                                          "The old lighthouse",
                                          "-p",
                                          "When",
                                          "--seed",
                                          "5",
                                          "--workers",
                                          "1",
                                          "--max-tokens",
                                          "40",
                                          "--record",
                                          trace,
                                          "--json",
                                          report,
                                          "--expert-memory",
                                          "20%",
                                          "--link",
                                          "4GB/s,10us",
                                          "--forecaster",
                                          "off"};
  Program run(Joined(words, {"--prefetch", "off"}));
  ASSERT_EQ(run.Wait(), 0) << run.err();
  const auto live = nlohmann::json::parse(ReadAll(report));
  const auto& stats = live["status"]["workers"][0]["stats"];

  Program simulate(
      {"simulate", "--as-recorded", "--trace", trace, "--model", kModel, "--json", "-"});
  ASSERT_EQ(simulate.Wait(), 0) << simulate.err();
  const auto simulated = nlohmann::json::parse(simulate.out());
  EXPECT_EQ(simulated["decision_digest"], stats["decision_digest"]);
  EXPECT_EQ(simulated["hits"], stats["hits"]);
  EXPECT_EQ(simulated["misses"], stats["misses"]);
  EXPECT_GT(simulated["misses"], 100);
  EXPECT_EQ(simulated["steps"], stats["steps"]);
  for (const char* which : {"recorded", "simulated"}) {
    EXPECT_GT(simulated[which]["tokens_per_second"], 0) << which;
    EXPECT_GT(simulated[which]["stall_ns"], 0) << which;
  }

  // Routing of another model's shape that is like this one's.
  const std::vector<std::string> like = {
      "simulate", "--model", kModel,           "--hardware", "edge",   "--memory", "600MB",
      "--arms",   "lru",     "--routing-like", trace,        "--json", "-"};
  Program drawn(like);
  ASSERT_EQ(drawn.Wait(), 0) << drawn.err();
  const std::string origin = nlohmann::json::parse(drawn.out())["rows"][0]["routing"];
  EXPECT_NE(origin.find("fitted to " + trace), std::string::npos) << origin;
  Program both(Joined(like, {"--routing", "skew=1"}));
  EXPECT_EQ(both.Wait(), 2);
  EXPECT_NE(both.err().find("--routing-like"), std::string::npos) << both.err();

  // What depends on when copies arrived is refused, and so is another model.
  Program prefetched(Joined(words, {"--prefetch", "on"}));
  ASSERT_EQ(prefetched.Wait(), 0) << prefetched.err();
  Program refused({"simulate", "--as-recorded", "--trace", trace, "--model", kModel});
  EXPECT_EQ(refused.Wait(), 2);
  EXPECT_NE(refused.err().find("--prefetch off"), std::string::npos) << refused.err();
}

}  // namespace
}  // namespace expertflow::testing
