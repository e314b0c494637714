#include "launch/top/metric_samples.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace expertflow {

MetricSamples MetricSamples::Parse(std::string_view text) {
  MetricSamples samples;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line[0] == '#') continue;
    const size_t name_end = line.find_first_of("{ ");
    if (name_end == std::string_view::npos) continue;
    Sample sample;
    const std::string name(line.substr(0, name_end));
    line.remove_prefix(name_end);
    if (line[0] == '{') {
      line.remove_prefix(1);
      while (!line.empty() && line[0] != '}') {
        const size_t equals = line.find("=\"");
        const size_t close = equals == std::string_view::npos ? equals : line.find('"', equals + 2);
        if (close == std::string_view::npos) break;
        sample.labels.emplace(line.substr(0, equals), line.substr(equals + 2, close - equals - 2));
        line.remove_prefix(close + 1);
        if (!line.empty() && line[0] == ',') line.remove_prefix(1);
      }
      if (line.empty() || line[0] != '}') continue;
      line.remove_prefix(1);
    }
    const std::string number(line);
    char* rest = nullptr;
    sample.value = std::strtod(number.c_str(), &rest);
    if (rest == number.c_str()) continue;
    samples.samples_[name].push_back(std::move(sample));
  }
  return samples;
}

double MetricSamples::Value(const std::string& name) const {
  const auto found = samples_.find(name);
  return found == samples_.end() ? 0 : found->second.front().value;
}

double MetricSamples::Value(const std::string& name, const std::string& label,
                            const std::string& value) const {
  const auto found = samples_.find(name);
  if (found == samples_.end()) return 0;
  for (const Sample& sample : found->second) {
    const auto at = sample.labels.find(label);
    if (at != sample.labels.end() && at->second == value) return sample.value;
  }
  return 0;
}

std::vector<std::string> MetricSamples::Labels(const std::string& name,
                                               const std::string& label) const {
  std::vector<std::string> values;
  const auto found = samples_.find(name);
  if (found == samples_.end()) return values;
  for (const Sample& sample : found->second) {
    if (const auto at = sample.labels.find(label); at != sample.labels.end()) {
      values.push_back(at->second);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<std::pair<double, double>> MetricSamples::Buckets(const std::string& name) const {
  std::vector<std::pair<double, double>> buckets;
  const auto found = samples_.find(name + "_bucket");
  if (found == samples_.end()) return buckets;
  for (const Sample& sample : found->second) {
    const auto bound = sample.labels.find("le");
    if (bound == sample.labels.end()) continue;
    buckets.emplace_back(bound->second == "+Inf" ? std::numeric_limits<double>::infinity()
                                                 : std::strtod(bound->second.c_str(), nullptr),
                         sample.value);
  }
  std::sort(buckets.begin(), buckets.end());
  return buckets;
}

std::optional<double> QuantileBetween(const MetricSamples& before, const MetricSamples& now,
                                      const std::string& name, double quantile) {
  std::vector<std::pair<double, double>> buckets = now.Buckets(name);
  const std::vector<std::pair<double, double>> earlier = before.Buckets(name);
  for (size_t i = 0; i < buckets.size() && i < earlier.size(); ++i) {
    buckets[i].second -= earlier[i].second;
  }
  if (buckets.empty() || buckets.back().second <= 0) return std::nullopt;
  const double rank = quantile * buckets.back().second;
  double below = 0;
  double count = 0;
  for (const auto& [bound, cumulative] : buckets) {
    if (cumulative >= rank) {
      if (bound == std::numeric_limits<double>::infinity()) return below;
      if (cumulative == count) return bound;
      return below + (bound - below) * (rank - count) / (cumulative - count);
    }
    below = bound;
    count = cumulative;
  }
  return below;
}

}  // namespace expertflow
