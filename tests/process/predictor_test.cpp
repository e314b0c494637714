// The way of a predictor through the tools: recorded, fitted, judged, refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/predictor_run.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;
using testing::kModel;
using testing::PredictorTest;
using testing::Program;
using testing::RecallAt;

const std::string kPredictor = kModel + "/predictor.efp";

TEST_F(PredictorTest, TheBundledOneKnowsWhatComes) {
  Record(Path("a.eft"), {});
  const nlohmann::json json = Judge(Path("a.eft"), kPredictor);
  EXPECT_EQ(json["trained_sequences"], 0);
  for (const int distance : {1, 4, 8}) {
    auto recall = RecallAt(json, distance);
    EXPECT_EQ(recall.size(), 14u);  // seven arms, from two moments
    EXPECT_EQ(recall["oracle"], 1);
    EXPECT_GT(recall["forest + probe"], distance == 1 ? 0.8 : 0.6);
    EXPECT_GT(recall["forest + probe"], recall["pre-gate"] + 0.04);
    EXPECT_GT(recall["forest"], recall["pre-gate"]);
    EXPECT_GT(recall["pre-gate"], recall["frequency"]);
  }
  EXPECT_GT(std::filesystem::file_size(Path("plot.svg")), 1000u);
}

TEST_F(PredictorTest, RecordedFeaturesAndThoseOfARunOverTheTokensAreTheSame) {
  Record(Path("a.eft"), {});
  Record(Path("b.eft"), {"--record-features", "--expert-memory", "30%"});
  nlohmann::json computed = Judge(Path("a.eft"), kPredictor);
  nlohmann::json recorded = Judge(Path("b.eft"), kPredictor);
  EXPECT_EQ(computed["rows"], recorded["rows"]);
  EXPECT_EQ(computed["calibration"], recorded["calibration"]);
}

TEST_F(PredictorTest, WhatDoesNotBelongTogetherIsRefused) {
  std::ofstream(Path("other.jsonl"))
      << R"({"format":"expertflow-routing","version":1,"model":"m","experts":[4,5],"top_k":2})"
         "\n"
         R"({"sequence":7,"position":0,"token":5,"experts":[[0,1],[2,3]]})"
         "\n";
  const auto refusal = [&](const std::vector<std::string>& words) {
    Program program(words);
    EXPECT_EQ(program.Wait(), 2);
    return program.err();
  };
  EXPECT_THAT(
      refusal({"bench", "predictor", "--trace", Path("other.jsonl"), "--predictor", kPredictor}),
      HasSubstr("another model"));
  EXPECT_THAT(refusal({"bench", "predictor", "--trace", Path("other.jsonl"), "--predictor",
                       Path("other.jsonl")}),
              HasSubstr("not a predictor"));
  EXPECT_THAT(refusal({"bench", "predictor", "--predictor", kPredictor}), HasSubstr("--trace"));
  EXPECT_THAT(refusal({"train", Path("other.jsonl"), "-o", Path("a.bin")}), HasSubstr(".efp"));
  EXPECT_THAT(refusal({"train", Path("other.jsonl"), "-o", Path("a.efp")}),
              HasSubstr("another model"));
}

}  // namespace
}  // namespace expertflow
