#include "worker/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace expertflow {
namespace {

// A larger share of the vocabulary is sorted as a whole.
constexpr size_t kRadixSortShare = 16;

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

// The largest value, or NaN if there is one. In lanes, so that it becomes vector instructions.
float LargestOrNan(std::span<const float> values) {
  constexpr size_t kSideBySide = 16;
  std::array<float, kSideBySide> largest;
  std::array<uint32_t, kSideBySide> nan{};
  largest.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kSideBySide <= values.size(); i += kSideBySide) {
    for (size_t j = 0; j < kSideBySide; ++j) {
      const float value = values[i + j];
      largest[j] = value > largest[j] ? value : largest[j];
      nan[j] |= value != value ? 1u : 0u;
    }
  }
  for (; i < values.size(); ++i) {
    largest[0] = std::max(largest[0], values[i]);
    nan[0] |= std::isnan(values[i]) ? 1u : 0u;
  }
  const bool any_nan = std::any_of(nan.begin(), nan.end(), [](uint32_t flag) { return flag != 0; });
  return any_nan ? std::numeric_limits<float>::quiet_NaN()
                 : *std::max_element(largest.begin(), largest.end());
}

// Unsigned numbers in the opposite order. REQUIRES: no NaN
uint32_t DescendingKey(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);  // no negative zero
  return (bits >> 31) != 0 ? bits : ~bits & 0x7fffffffu;
}

Status CheckRange(const char* name, float value, float min, float max) {
  if (value >= min && value <= max) return OkStatus();
  return InvalidArgument(fmt::format("{} {} is not between {} and {}", name, value, min, max));
}

}  // namespace

std::span<const float> Sampler::Adjust(std::span<const float> logits, const SamplingParams& params,
                                       std::span<const int32_t> tokens, size_t prompt_tokens,
                                       const AllowedTokens* allowed) {
  const bool counted = params.frequency_penalty != 0 || params.presence_penalty != 0;
  const bool repeated = params.repetition_penalty != 1;
  if (!counted && !repeated && params.logit_bias.empty() && allowed == nullptr) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  if (counts_.size() < logits.size()) counts_.resize(logits.size());
  if (repeated) {
    for (const int32_t token : tokens) {
      if (counts_[token]++ > 0) continue;
      float& logit = adjusted_[token];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    for (const int32_t token : tokens) counts_[token] = 0;
  }
  if (counted) {
    const auto generated = tokens.subspan(prompt_tokens);
    for (const int32_t token : generated) ++counts_[token];
    for (const int32_t token : generated) {
      const auto count = static_cast<float>(std::exchange(counts_[token], 0));
      if (count == 0) continue;
      adjusted_[token] -= params.frequency_penalty * count;
      adjusted_[token] -= params.presence_penalty;
    }
  }
  for (const LogitBias& bias : params.logit_bias) adjusted_[bias.token] += bias.bias;
  if (allowed != nullptr) Forbid(*allowed);
  return adjusted_;
}

void Sampler::Forbid(const AllowedTokens& allowed) {
  const auto is_allowed = [&allowed](size_t id) {
    if (id / 64 < allowed.bits.size() && (allowed.bits[id / 64] >> (id % 64) & 1) != 0) return true;
    return std::find(allowed.also.begin(), allowed.also.end(), static_cast<int32_t>(id)) !=
           allowed.also.end();
  };
  for (size_t id = 0; id < adjusted_.size(); ++id) {
    // What is not a number stays so: it is an error.
    if (!std::isnan(adjusted_[id]) && !is_allowed(id)) {
      adjusted_[id] = -std::numeric_limits<float>::infinity();
    }
  }
}

void Sampler::OrderByLikelihood(std::span<const float> logits, size_t count) {
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  if (count <= logits.size() / kRadixSortShare) {
    const auto more_likely = [&logits](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    std::partial_sort(order_.begin(), order_.begin() + static_cast<int64_t>(count), order_.end(),
                      more_likely);
    return;
  }
  // By digits of the key, the lowest first; each pass keeps the order of what is equal.
  constexpr int kDigitBits = 11;
  constexpr size_t kDigits = size_t{1} << kDigitBits;
  keys_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) keys_[i] = DescendingKey(logits[i]);
  sorted_.resize(logits.size());
  for (int shift = 0; shift < 32; shift += kDigitBits) {
    const auto digit = [&](int32_t id) { return keys_[id] >> shift & (kDigits - 1); };
    std::array<uint32_t, kDigits + 1> begins{};
    for (const int32_t id : order_) ++begins[digit(id) + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    for (const int32_t id : order_) sorted_[begins[digit(id)]++] = id;
    order_.swap(sorted_);
  }
}

Result<int32_t> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                uint32_t position) {
  const float largest = LargestOrNan(logits);
  const auto wanted_at = std::find_if(logits.begin(), logits.end(), [largest](float logit) {
    return logit == largest || std::isnan(logit);
  });
  const auto best = static_cast<int32_t>(wanted_at - logits.begin());
  if (std::isnan(largest)) {
    return Internal(fmt::format("the model's logits are not numbers (token {})", best));
  }
  if (params.temperature <= 0) return best;
  if (!std::isfinite(logits[best])) {
    return Internal(fmt::format("the model's logits have no softmax: the largest is {} (token {})",
                                logits[best], best));
  }

  size_t count = logits.size();
  if (params.top_k > 0) count = std::min(count, static_cast<size_t>(params.top_k));
  OrderByLikelihood(logits, count);

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
  if (params.min_p > 0) {
    // The most likely one has e^0 = 1.
    const auto first_out = std::lower_bound(
        probability_.begin(), probability_.begin() + static_cast<int64_t>(count), params.min_p,
        [](double probability, float min_p) { return probability >= static_cast<double>(min_p); });
    if (const auto left = static_cast<size_t>(first_out - probability_.begin()); left < count) {
      count = std::max<size_t>(left, 1);
      kept = std::accumulate(probability_.begin(),
                             probability_.begin() + static_cast<int64_t>(count), 0.0);
    }
  }
  double target = Uniform(params.seed, position) * kept;
  for (size_t i = 0; i < count; ++i) {
    target -= probability_[i];
    if (target < 0) return order_[i];
  }
  return order_[count - 1];
}

Status CheckSamplingParams(const SamplingParams& params, int64_t vocab) {
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
  RETURN_IF_ERROR(CheckRange("min_p", params.min_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("repetition_penalty", params.repetition_penalty, 0.01f, 100));
  RETURN_IF_ERROR(CheckRange("frequency_penalty", params.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(CheckRange("presence_penalty", params.presence_penalty, -2, 2));
  for (const LogitBias& bias : params.logit_bias) {
    if (bias.token < 0 || bias.token >= vocab) {
      return InvalidArgument(fmt::format("logit_bias: token id {} is outside the vocabulary of {}",
                                         bias.token, vocab));
    }
    RETURN_IF_ERROR(CheckRange("logit_bias", bias.bias, -100, 100));
  }
  return OkStatus();
}

}  // namespace expertflow
