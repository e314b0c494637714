// Prometheus text as numbers: what `expertflow top` reads. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace expertflow {

class MetricSamples {
 public:
  // Lines that are no samples are left out.
  static MetricSamples Parse(std::string_view text);

  // 0 when there is none.
  double Value(const std::string& name) const;
  // Of the sample whose labels hold `label`="`value`".
  double Value(const std::string& name, const std::string& label, const std::string& value) const;
  // All values of a label, ascending: the workers, say.
  std::vector<std::string> Labels(const std::string& name, const std::string& label) const;
  // Upper bounds and cumulative counts of a histogram, ascending.
  std::vector<std::pair<double, double>> Buckets(const std::string& name) const;

 private:
  struct Sample {
    std::map<std::string, std::string> labels;
    double value = 0;
  };
  std::map<std::string, std::vector<Sample>> samples_;
};

// The quantile of what came between two states of a histogram, in seconds, straight between the
// bounds of a bucket; nothing when nothing came.
std::optional<double> QuantileBetween(const MetricSamples& before, const MetricSamples& now,
                                      const std::string& name, double quantile);

}  // namespace expertflow
