// Records a text, and judges a predictor on it, by the tools.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/program.h"

namespace expertflow::testing {

class PredictorTest : public ::testing::Test {
 protected:
  PredictorTest() : folder_(::testing::TempDir() + "predictor-" + std::to_string(::getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~PredictorTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  // The same text each time.
  void Record(const std::string& file, const std::vector<std::string>& options) {
    std::vector<std::string> words = {"run",
                                      "--model",
                                      kModel,
                                      "-p",
                                      "The old lighthouse",
                                      "-p",
                                      "When the rain came",
                                      "-p",
                                      "A recipe for bread",
                                      "-p",
                                      "She opened the letter",
                                      "--max-tokens",
                                      "60",
                                      "--ignore-eos",
                                      "--record",
                                      file};
    words.insert(words.end(), options.begin(), options.end());
    Program run(words);
    ASSERT_EQ(run.Wait(), 0) << run.err();
  }
  nlohmann::json Judge(const std::string& trace, const std::string& predictor) {
    Program bench({"bench", "predictor", "--trace", trace, "--predictor", predictor, "--tokens",
                   "300", "--json", "-", "--plot", Path("plot.svg")});
    EXPECT_EQ(bench.Wait(), 0) << bench.err();
    return nlohmann::json::parse(bench.out(), nullptr, false);
  }

 private:
  const std::string folder_;
};

// By arm, of all layers at a distance.
inline std::map<std::string, double> RecallAt(const nlohmann::json& json, int distance) {
  std::map<std::string, double> recall;
  for (const auto& row : json["rows"]) {
    if (row["distance"] == distance && row["layer"] == "all") recall[row["arm"]] = row["recall"];
  }
  return recall;
}

}  // namespace expertflow::testing
