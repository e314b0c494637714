#include "sim/synthetic_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "predictor/core/any_of_ppm.h"

namespace expertflow {
namespace {

// SplitMix64: the standard library's distributions differ between libraries.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // The sum of twelve uniforms: close to normal, without transcendental functions.
  float Normal() {
    uint32_t sum = 0;
    for (int i = 0; i < 3; ++i) {
      const uint64_t bits = Next();
      sum += static_cast<uint32_t>(bits & 0xffff) + static_cast<uint32_t>(bits >> 16 & 0xffff) +
             static_cast<uint32_t>(bits >> 32 & 0xffff) + static_cast<uint32_t>(bits >> 48);
    }
    return static_cast<float>(sum) * 0x1p-16F - 6.0F;
  }

 private:
  uint64_t state_;
};

double NormalTail(double x) {
  return 0.5 * std::erfc(x * std::sqrt(0.5));
}

// Where `used` scores shifted by `shift` and `unused` others leave `used` above.
double Threshold(double shift, double used, double unused) {
  double low = -12;
  double high = 12 + shift;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const double above = used * NormalTail(middle - shift) + unused * NormalTail(middle);
    (above > used ? low : high) = middle;
  }
  return low;
}

float ShiftFor(double recall, double used, double unused) {
  if (recall >= 1 || unused <= 0) return std::numeric_limits<float>::infinity();
  double low = 0;
  double high = 12;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const double reached = NormalTail(Threshold(middle, used, unused) - middle);
    (reached < recall ? low : high) = middle;
  }
  return static_cast<float>(low);
}

// [experts] cumulative.
std::vector<double> Preferences(int32_t experts, const SyntheticRouting& options,
                                std::span<const int32_t> common_order, Random& random) {
  std::vector<int32_t> own(static_cast<size_t>(experts));
  std::iota(own.begin(), own.end(), 0);
  for (size_t i = own.size(); i > 1; --i) std::swap(own[i - 1], own[random.Next() % i]);
  std::vector<double> cumulative;
  double sum = 0;
  for (size_t e = 0; e < own.size(); ++e) {
    const double log_weight = options.common * std::log(1.0 + common_order[e]) +
                              (1 - options.common) * std::log(1.0 + own[e]);
    sum += std::exp(-options.skew * log_weight);
    cumulative.push_back(sum);
  }
  return cumulative;
}

uint16_t Draw(std::span<const double> cumulative, Random& random) {
  const double at = random.Uniform() * cumulative.back();
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end() - 1, at);
  return static_cast<uint16_t>(found - cumulative.begin());
}

}  // namespace

RoutingTrace SynthesizeRouting(const SyntheticRouting& options) {
  CHECK(options.sequences > 0 && options.tokens > 0 && options.top_k > 0);
  RoutingTrace trace;
  trace.experts = options.experts;
  trace.top_k = options.top_k;
  trace.expert_bytes = options.expert_bytes;
  Random random(options.seed);
  const size_t layers = options.experts.size();
  const auto k = static_cast<size_t>(options.top_k);
  std::vector<std::vector<int32_t>> common(layers);
  for (size_t l = 0; l < layers; ++l) {
    CHECK(options.experts[l] >= options.top_k && options.experts[l] <= 65536);
    common[l].resize(static_cast<size_t>(options.experts[l]));
    std::iota(common[l].begin(), common[l].end(), 0);
    for (size_t i = common[l].size(); i > 1; --i) {
      std::swap(common[l][i - 1], common[l][random.Next() % i]);
    }
  }
  const auto tokens = static_cast<size_t>(options.tokens);
  trace.chosen.resize(static_cast<size_t>(options.sequences) * tokens * layers * k);
  trace.weights.assign(trace.chosen.size(), 1.0F / static_cast<float>(k));
  uint16_t* chosen = trace.chosen.data();
  for (int32_t s = 0; s < options.sequences; ++s) {
    trace.sequences.push_back({static_cast<size_t>(s) * tokens, tokens});
    std::vector<std::vector<double>> preferences;
    for (size_t l = 0; l < layers; ++l) {
      preferences.push_back(Preferences(options.experts[l], options, common[l], random));
    }
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t l = 0; l < layers; ++l, chosen += k) {
        size_t made = 0;
        const uint16_t* before = chosen - layers * k;
        for (size_t j = 0; t > 0 && j < k; ++j) {
          if (random.Uniform() < options.persistence) chosen[made++] = before[j];
        }
        while (made < k) {
          const uint16_t expert = Draw(preferences[l], random);
          if (std::find(chosen, chosen + made, expert) == chosen + made) chosen[made++] = expert;
        }
      }
    }
  }
  return trace;
}

NoisyOracle::NoisyOracle(const RoutingTrace& trace, const Lockstep& lockstep,
                         std::vector<double> recall, uint64_t seed)
    : trace_(trace), lockstep_(lockstep), recall_(std::move(recall)), seed_(seed) {
  CHECK(!recall_.empty());
  for (const double r : recall_) {
    std::vector<float>& shifts = shift_.emplace_back();
    for (const int32_t experts : trace.experts) {
      shifts.push_back(ShiftFor(r, trace.top_k, experts - trace.top_k));
    }
  }
}

void NoisyOracle::Predict(size_t step, int32_t target, int32_t distance,
                          std::span<uint32_t> probability_ppm) {
  const size_t j = std::min(static_cast<size_t>(distance), recall_.size()) - 1;
  const float shift = shift_[j][static_cast<size_t>(target)];
  const auto experts = probability_ppm.size();
  const float prior =
      std::log(static_cast<float>(trace_.top_k) /
               std::max(1.0F, static_cast<float>(experts) - static_cast<float>(trace_.top_k)));
  for (const Lockstep::Row& row : lockstep_.RowsOf(step)) {
    if (row.prefill) continue;
    const std::span<const uint16_t> chosen = trace_.ChosenAt(row.row, target);
    if (!std::isfinite(shift)) {
      for (const uint16_t expert : chosen) {
        if (expert < experts) probability_ppm[expert] = 1'000'000;
      }
      continue;
    }
    const uint64_t at = (row.row * 4096 + static_cast<uint64_t>(target)) * 64 + j;
    Random random(seed_ ^ at * 0x9e3779b97f4a7c15u);
    scores_.resize(experts);
    for (float& score : scores_) score = random.Normal();
    for (const uint16_t expert : chosen) {
      if (expert < experts) scores_[expert] += shift;
    }
    for (size_t e = 0; e < experts; ++e) {
      const float p = 1 / (1 + std::exp(-(shift * scores_[e] - shift * shift / 2 + prior)));
      probability_ppm[e] = AnyOfPpm(probability_ppm[e], static_cast<uint32_t>(p * 1e6F));
    }
  }
}

ActivationFrequency::ActivationFrequency(const RoutingTrace& trace, const Lockstep& lockstep)
    : trace_(trace), lockstep_(lockstep) {
  uses_.assign(static_cast<size_t>(lockstep.batch),
               std::vector<uint32_t>(static_cast<size_t>(lockstep.base.back())));
  tokens_.assign(static_cast<size_t>(lockstep.batch), 0);
}

void ActivationFrequency::Predict(size_t step, int32_t target, int32_t /*distance*/,
                                  std::span<uint32_t> probability_ppm) {
  const auto base = static_cast<size_t>(lockstep_.base[static_cast<size_t>(target)]);
  for (const Lockstep::Row& row : lockstep_.RowsOf(step)) {
    if (row.prefill) continue;
    const auto lane = static_cast<size_t>(row.lane);
    for (size_t e = 0; e < probability_ppm.size(); ++e) {
      const uint64_t uses = row.first ? 0 : uses_[lane][base + e];
      const uint64_t ppm = uses * 1'000'000 / std::max<uint64_t>(1, tokens_[lane]);
      probability_ppm[e] =
          AnyOfPpm(probability_ppm[e], static_cast<uint32_t>(std::min<uint64_t>(ppm, 1'000'000)));
    }
  }
}

void ActivationFrequency::Observe(size_t step, int32_t layer) {
  const auto base = static_cast<size_t>(lockstep_.base[static_cast<size_t>(layer)]);
  for (const Lockstep::Row& row : lockstep_.RowsOf(step)) {
    const auto lane = static_cast<size_t>(row.lane);
    if (row.first && layer == 0) {
      std::fill(uses_[lane].begin(), uses_[lane].end(), 0);
      tokens_[lane] = 0;
    }
    for (const uint16_t e : trace_.ChosenAt(row.row, layer)) ++uses_[lane][base + e];
    if (layer + 1 == lockstep_.layers) ++tokens_[lane];
  }
}

}  // namespace expertflow
