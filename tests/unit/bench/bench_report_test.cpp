#include "launch/bench/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launch/bench/bench_model.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BenchReport, MedianOfEvenAndOddCounts) {
  EXPECT_EQ(Summarize({3, 1, 2}).median, 2);
  const Summary even = Summarize({4, 1, 3, 2});
  EXPECT_EQ(even.min, 1);
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.max, 4);
}

TEST(BenchReport, RatiosArePairByPair) {
  EXPECT_THAT(PairRatios({2, 9}, {1, 3}), ElementsAre(2, 3));
}

TEST(BenchReport, GoalIsJudgedByTheMedianInItsDirection) {
  BenchReport report;
  report.AddGoal("share", "%", {70, 81, 99}, true, 80);
  report.AddGoal("overhead", "us", {70, 181, 99}, false, 80);
  EXPECT_TRUE(report.goals[0].met());
  EXPECT_FALSE(report.goals[1].met());
  EXPECT_THAT(report.ToText(), HasSubstr("share: 81.00 % (goal: at least 80.00 %), met"));
  EXPECT_THAT(report.ToText(), HasSubstr("NOT MET"));
}

TEST(BenchReport, JsonHasEverySample) {
  BenchReport report;
  report.bench = "copies";
  report.AddSetting("link", "emulated, 4.00 GB/s");
  report.AddRow("memcpy", "GB/s", {2, 1}, "limit");
  const auto json = nlohmann::json::parse(report.ToJson());
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["settings"]["link"], "emulated, 4.00 GB/s");
  EXPECT_EQ(json["rows"][0]["samples"], nlohmann::json::array({2.0, 1.0}));
  EXPECT_EQ(json["rows"][0]["median"], 1.5);
}

// The bundled model ties its embedding: a token reads the table as the output layer.
TEST(BenchModel, BytesOfATokenAreDenseAndChosenExpertsAndKeysAndValues) {
  const auto model =
      BenchModel::Open(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe", ::testing::TempDir());
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const TouchedBytes bytes = BytesPerToken(*model, 9);
  EXPECT_EQ(bytes.dense, model->store().total_dense_bytes());
  EXPECT_EQ(bytes.experts, 12u * 4 * 3 * 192 * 32 * 2);
  EXPECT_EQ(bytes.kv, 10u * 2 * 4 * 12 * 2 * 32);
  EXPECT_EQ(model->expert_memory().size(), model->store().total_expert_bytes());
}

}  // namespace
}  // namespace expertflow
