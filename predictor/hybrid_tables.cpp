#include "predictor/hybrid_tables.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace expertflow {
namespace {

constexpr double kLiftStrength = 20;  // likewise of co-activation
constexpr double kLiftScale = 32;     // steps of a natural logarithm

void FitBase(const FeatureTrace& trace, std::span<const size_t> sequences, HybridModel* model) {
  std::vector<double> uses(model->experts_total(), 0.0);
  double tokens = 0;
  for (const size_t s : sequences) {
    for (size_t at = 0; at < trace.length(s); ++at) {
      ++tokens;
      for (int32_t l = 0; l < model->layers(); ++l) {
        const size_t base = model->BaseOf(l);
        for (const uint16_t expert : trace.Chosen(s, at, l)) ++uses[base + expert];
      }
    }
  }
  model->base.resize(uses.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    model->base[i] = static_cast<float>((uses[i] + 0.5) / (tokens + 1));
  }
}

void FitCoactivation(const FeatureTrace& trace, std::span<const size_t> sequences,
                     HybridModel* model) {
  const auto layers = static_cast<size_t>(model->layers());
  model->coactivation.resize(layers);
  std::vector<double> together;
  std::vector<double> before;
  for (size_t l = 0; l < layers; ++l) {
    const auto experts = static_cast<size_t>(model->experts[l]);
    const float* base = model->base.data() + model->BaseOf(static_cast<int32_t>(l));
    for (size_t lag = 1; lag <= static_cast<size_t>(kCoactivationLags) && lag <= l; ++lag) {
      const auto others = static_cast<size_t>(model->experts[l - lag]);
      together.assign(others * experts, 0.0);
      before.assign(others, 0.0);
      for (const size_t s : sequences) {
        for (size_t at = 0; at < trace.length(s); ++at) {
          const auto now = trace.Chosen(s, at, static_cast<int32_t>(l));
          for (const uint16_t other : trace.Chosen(s, at, static_cast<int32_t>(l - lag))) {
            ++before[other];
            for (const uint16_t expert : now) ++together[other * experts + expert];
          }
        }
      }
      std::vector<int8_t>& lift = model->coactivation[l][lag - 1];
      lift.resize(others * experts);
      for (size_t other = 0; other < others; ++other) {
        for (size_t e = 0; e < experts; ++e) {
          const double share = (together[other * experts + e] + kLiftStrength * base[e]) /
                               (before[other] + kLiftStrength);
          const double steps = kLiftScale * std::log(share / base[e]);
          lift[other * experts + e] =
              static_cast<int8_t>(std::lround(std::clamp(steps, -127.0, 127.0)));
        }
      }
    }
  }
}

void FitTokenPrior(const FeatureTrace& trace, std::span<const size_t> sequences,
                   const TableFitOptions& options, HybridModel* model) {
  std::map<int32_t, uint32_t> counts;
  for (const size_t s : sequences) {
    for (size_t at = 0; at < trace.length(s); ++at) ++counts[trace.TokenId(s, at)];
  }
  counts.erase(-1);  // not known
  std::vector<std::pair<uint32_t, int32_t>> order;
  for (const auto& [token, count] : counts) {
    if (count >= static_cast<uint32_t>(std::max(options.token_count_min, 1)))
      order.emplace_back(count, token);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (order.size() > options.tokens_max) order.resize(options.tokens_max);
  model->tokens.clear();
  for (const auto& [count, token] : order) model->tokens.push_back(token);
  std::sort(model->tokens.begin(), model->tokens.end());
  const size_t total = model->experts_total();
  std::vector<uint32_t> uses(model->tokens.size() * total, 0);
  for (const size_t s : sequences) {
    for (size_t at = 0; at < trace.length(s); ++at) {
      const int32_t token = trace.TokenId(s, at);
      const auto found = std::lower_bound(model->tokens.begin(), model->tokens.end(), token);
      if (found == model->tokens.end() || *found != token) continue;
      uint32_t* row = uses.data() + static_cast<size_t>(found - model->tokens.begin()) * total;
      for (int32_t l = 0; l < model->layers(); ++l) {
        const size_t base = model->BaseOf(l);
        for (const uint16_t expert : trace.Chosen(s, at, l)) ++row[base + expert];
      }
    }
  }
  model->token_row.resize(model->tokens.size());
  std::iota(model->token_row.begin(), model->token_row.end(), 0u);
  model->token_count.resize(model->tokens.size());
  model->token_prior.resize(uses.size());
  for (size_t t = 0; t < model->tokens.size(); ++t) {
    const uint32_t count = counts[model->tokens[t]];
    model->token_count[t] = count;
    for (size_t i = 0; i < total; ++i) {
      const double share = (uses[t * total + i] + kTokenPriorStrength * model->base[i]) /
                           (count + kTokenPriorStrength);
      model->token_prior[t * total + i] = TokenPriorOf(static_cast<float>(share));
    }
  }
}

}  // namespace

void FitTables(const FeatureTrace& trace, std::span<const size_t> sequences,
               const TableFitOptions& options, HybridModel* model) {
  FitBase(trace, sequences, model);
  FitCoactivation(trace, sequences, model);
  FitTokenPrior(trace, sequences, options, model);
}

void MarginHistogram::Add(float margin, bool used) {
  const float place = (margin - kFrom) / (kTo - kFrom) * static_cast<float>(kBins);
  const auto bin = static_cast<size_t>(std::clamp(place, 0.0f, static_cast<float>(kBins - 1)));
  all_[bin] += 1;
  used_[bin] += used ? 1 : 0;
}

void MarginHistogram::Add(const MarginHistogram& other) {
  for (size_t b = 0; b < kBins; ++b) {
    all_[b] += other.all_[b];
    used_[b] += other.used_[b];
  }
}

Logistic MarginHistogram::FitLogistic() const {
  double slope = 0;
  double offset = 0;
  double total = 0;
  double hits = 0;
  for (size_t b = 0; b < kBins; ++b) {
    total += all_[b];
    hits += used_[b];
  }
  const double mean = (hits + 0.5) / (total + 1);
  offset = std::log(mean / (1 - mean));
  // Newton's method with a little ridge: the likelihood is concave.
  for (int round = 0; round < 50 && hits > 0 && hits < total; ++round) {
    double g0 = -1e-3 * slope;
    double g1 = 0;
    double h00 = 1e-3;
    double h01 = 0;
    double h11 = 1e-6;
    for (size_t b = 0; b < kBins; ++b) {
      if (all_[b] == 0) continue;
      const double x = kFrom + (static_cast<double>(b) + 0.5) * (kTo - kFrom) / kBins;
      const double p = 1 / (1 + std::exp(-(slope * x + offset)));
      const double error = used_[b] - all_[b] * p;
      const double weight = all_[b] * p * (1 - p);
      g0 += error * x;
      g1 += error;
      h00 += weight * x * x;
      h01 += weight * x;
      h11 += weight;
    }
    const double determinant = h00 * h11 - h01 * h01;
    if (!(determinant > 0)) break;
    const double step0 = std::clamp((h11 * g0 - h01 * g1) / determinant, -2.0, 2.0);
    const double step1 = std::clamp((h00 * g1 - h01 * g0) / determinant, -2.0, 2.0);
    slope += step0;
    offset += step1;
    if (std::abs(step0) + std::abs(step1) < 1e-9) break;
  }
  return {static_cast<float>(slope), static_cast<float>(offset)};
}

}  // namespace expertflow
