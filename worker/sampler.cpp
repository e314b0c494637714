#include "worker/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace expertflow {
namespace {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t SplitMix64(uint64_t state) {
  state += 0x9e3779b97f4a7c15;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

// Uniform in [0, 1).
double Uniform(uint64_t seed, uint32_t position) {
  return static_cast<double>(SplitMix64(SplitMix64(seed) ^ position) >> 11) * 0x1.0p-53;
}

}  // namespace

Result<int32_t> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                uint32_t position) {
  int32_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      return Internal(fmt::format("the model's logits are not numbers (token {})", i));
    }
    if (logits[i] > logits[best]) best = static_cast<int32_t>(i);
  }
  if (params.temperature <= 0) return best;
  if (!std::isfinite(logits[best])) {
    return Internal(fmt::format("the model's logits have no softmax: the largest is {} (token {})",
                                logits[best], best));
  }

  size_t count = logits.size();
  if (params.top_k > 0) count = std::min(count, static_cast<size_t>(params.top_k));
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto more_likely = [&logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::partial_sort(order_.begin(), order_.begin() + static_cast<int64_t>(count), order_.end(),
                    more_likely);

  // Probabilities among the top_k, most likely first.
  probability_.resize(count);
  double total = 0;
  for (size_t i = 0; i < count; ++i) {
    const double exponent =
        (static_cast<double>(logits[order_[i]]) - static_cast<double>(logits[best])) /
        static_cast<double>(params.temperature);
    probability_[i] = std::exp(exponent);
    total += probability_[i];
  }
  double kept = total;
  if (params.top_p < 1) {
    const double wanted = total * static_cast<double>(params.top_p);
    kept = 0;
    size_t n = 0;
    while (n < count && kept < wanted) kept += probability_[n++];
    count = std::max<size_t>(n, 1);
    kept = n == 0 ? probability_[0] : kept;
  }
  double target = Uniform(params.seed, position) * kept;
  for (size_t i = 0; i < count; ++i) {
    target -= probability_[i];
    if (target < 0) return order_[i];
  }
  return order_[count - 1];
}

Status CheckSamplingParams(const SamplingParams& params) {
  if (!(params.temperature >= 0 && params.temperature <= 100)) {
    return InvalidArgument(
        fmt::format("temperature {} is not between 0 and 100", params.temperature));
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return InvalidArgument(fmt::format("top_p {} is not in (0, 1]", params.top_p));
  }
  if (params.top_k < 0) {
    return InvalidArgument(fmt::format("top_k {} is negative; 0 switches it off", params.top_k));
  }
  return OkStatus();
}

}  // namespace expertflow
