#include "launch/bench/typical_steps.h"

#include <algorithm>

#include "common/check.h"

namespace expertflow {
namespace {

double Median(std::vector<int64_t> samples) {
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return static_cast<double>(*middle);
}

}  // namespace

void TypicalSteps::Add(const RecordedRun& run) {
  if (ends_.empty()) {
    ends_.resize(run.steps().size());
    layers_.resize(run.steps().size() * run.shape().experts.size());
  }
  CHECK(run.steps().size() == ends_.size());
  size_t at = 0;
  for (size_t s = 0; s < ends_.size(); ++s) {
    ends_[s].push_back(run.steps()[s].end_ns);
    for (const RecordedRun::LayerTimes& layer : run.steps()[s].layers) {
      layers_[at++].push_back(layer);
    }
  }
}

double TypicalSteps::Sum(int64_t RecordedRun::LayerTimes::*time) const {
  double sum = 0;
  std::vector<int64_t> samples;
  for (const auto& layer : layers_) {
    samples.clear();
    for (const RecordedRun::LayerTimes& times : layer) samples.push_back(times.*time);
    sum += Median(samples);
  }
  return sum;
}

double TypicalSteps::EndNs() const {
  double sum = 0;
  for (const std::vector<int64_t>& step : ends_) sum += Median(step);
  return sum;
}

}  // namespace expertflow
