// What a benchmark measured: rows of samples with their unit, the physical limit among them, and
// the goals that they are held to. Printed as a table, written as JSON (docs/benchmarks.md).
//
// Arms that are compared take turns within one run, so their samples come in pairs: a ratio is
// taken pair by pair, which a busy machine disturbs less than the ratio of two medians.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace expertflow {

struct Summary {
  double min = 0;
  double median = 0;
  double max = 0;
};
// REQUIRES: samples is not empty
Summary Summarize(std::vector<double> samples);

// numerator[i] / denominator[i]. REQUIRES: equally many, no denominator 0
std::vector<double> PairRatios(const std::vector<double>& numerator,
                               const std::vector<double>& denominator);

// What one arm gave, a sample per repetition.
struct BenchRow {
  std::string name;
  std::string unit;  // "ms", "GB/s", "%"
  std::vector<double> samples;
  std::string note;  // "limit", "emulated link", ...
};

// A promise of the project and what became of it: the median of a row.
struct BenchGoal {
  std::string name;
  std::string unit;
  double value = 0;
  bool at_least = true;  // else: at most
  double bound = 0;
  bool met() const { return at_least ? value >= bound : value <= bound; }
};

struct BenchReport {
  std::string bench;
  std::string title;  // one line: what is measured
  std::vector<std::pair<std::string, std::string>> machine;
  std::vector<std::pair<std::string, std::string>> settings;  // what was run, as it was in effect
  std::vector<BenchRow> rows;
  std::vector<BenchGoal> goals;

  void AddSetting(std::string name, std::string value);
  void AddRow(std::string name, std::string unit, std::vector<double> samples,
              std::string note = "");
  // REQUIRES: samples is not empty
  void AddGoal(std::string name, std::string unit, const std::vector<double>& samples,
               bool at_least, double bound);

  std::string ToText() const;
  std::string ToJson() const;
};

}  // namespace expertflow
