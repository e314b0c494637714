#include "launch/bench/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/check.h"

namespace expertflow {
namespace {

constexpr int kJsonVersion = 1;

// Four significant digits, without exponent.
std::string FormatNumber(double value) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{}", value);
  const int digits = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  return fmt::format("{:.{}f}", value, std::clamp(4 - digits, 0, 6));
}

nlohmann::ordered_json Pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  auto object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : pairs) object[name] = value;
  return object;
}

void AppendPairs(const std::vector<std::pair<std::string, std::string>>& pairs, std::string* text) {
  for (const auto& [name, value] : pairs) *text += fmt::format("  {:<22} {}\n", name, value);
}

}  // namespace

Summary Summarize(std::vector<double> samples) {
  CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
  return {samples.front(), median, samples.back()};
}

std::vector<double> PairRatios(const std::vector<double>& numerator,
                               const std::vector<double>& denominator) {
  CHECK(numerator.size() == denominator.size());
  std::vector<double> ratios(numerator.size());
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] = numerator[i] / denominator[i];
  return ratios;
}

void BenchReport::AddSetting(std::string name, std::string value) {
  settings.emplace_back(std::move(name), std::move(value));
}

void BenchReport::AddRow(std::string name, std::string unit, std::vector<double> samples,
                         std::string note) {
  CHECK(!samples.empty());
  rows.push_back({std::move(name), std::move(unit), std::move(samples), std::move(note)});
}

void BenchReport::AddGoal(std::string name, std::string unit, const std::vector<double>& samples,
                          bool at_least, double bound) {
  goals.push_back({std::move(name), std::move(unit), Summarize(samples).median, at_least, bound});
}

std::string BenchReport::ToText() const {
  std::string text = fmt::format("bench {}: {}\n", bench, title);
  AppendPairs(machine, &text);
  AppendPairs(settings, &text);
  size_t width = 0;
  for (const BenchRow& row : rows) width = std::max(width, row.name.size());
  text += fmt::format("\n  {:<{}} {:>10} {:>10} {:>10}  {:<9} {:>3}\n", "", width, "min", "median",
                      "max", "unit", "n");
  for (const BenchRow& row : rows) {
    const Summary summary = Summarize(row.samples);
    text += fmt::format("  {:<{}} {:>10} {:>10} {:>10}  {:<9} {:>3}{}{}\n", row.name, width,
                        FormatNumber(summary.min), FormatNumber(summary.median),
                        FormatNumber(summary.max), row.unit, row.samples.size(),
                        row.note.empty() ? "" : "  ", row.note);
  }
  if (!goals.empty()) text += '\n';
  for (const BenchGoal& goal : goals) {
    text += fmt::format("  {}: {} {} (goal: at {} {} {}), {}\n", goal.name,
                        FormatNumber(goal.value), goal.unit, goal.at_least ? "least" : "most",
                        FormatNumber(goal.bound), goal.unit, goal.met() ? "met" : "NOT MET");
  }
  return text;
}

std::string BenchReport::ToJson() const {
  nlohmann::ordered_json json;
  json["version"] = kJsonVersion;
  json["bench"] = bench;
  json["title"] = title;
  json["machine"] = Pairs(machine);
  json["settings"] = Pairs(settings);
  json["rows"] = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    const Summary summary = Summarize(row.samples);
    json["rows"].push_back({{"name", row.name},
                            {"unit", row.unit},
                            {"min", summary.min},
                            {"median", summary.median},
                            {"max", summary.max},
                            {"samples", row.samples},
                            {"note", row.note}});
  }
  json["goals"] = nlohmann::ordered_json::array();
  for (const BenchGoal& goal : goals) {
    json["goals"].push_back({{"name", goal.name},
                             {"unit", goal.unit},
                             {"value", goal.value},
                             {goal.at_least ? "at_least" : "at_most", goal.bound},
                             {"met", goal.met()}});
  }
  return json.dump(2);
}

}  // namespace expertflow
