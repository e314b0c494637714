#include "predictor/next_use_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "predictor/dense.h"

namespace expertflow {
namespace {

constexpr size_t kFeatures = kForecastFeatures;
constexpr size_t kHorizons = kForecastHorizons;
constexpr size_t kOwn = kForecastOwnRates;
constexpr size_t kInputs = 2;  // what is decayed: uses, router weights
constexpr size_t kBlockRows = 128;

size_t InputOf(size_t feature) {
  return feature + 1 == kFeatures ? 1 : 0;
}
double DecayOf(double half_life) {
  return std::exp2(-1 / half_life);
}

// Sums over all rows. Rates are averages that decay in a fixed way, so every second moment of the
// rates follows from their products with the sparse uses: a tenth of the work of a dense Gram
// matrix. Row-major [N, N], the sparse side first.
class Moments {
 public:
  Moments(std::span<const int32_t> experts, int32_t top_k)
      : top_k_(static_cast<size_t>(top_k)), base_{0} {
    for (const int32_t count : experts) base_.push_back(base_.back() + static_cast<size_t>(count));
    n_ = base_.back();
    for (auto& per_input : rates_by_input) {
      for (auto& sum : per_input) sum.assign(n_ * n_, 0.0f);
    }
    for (auto& per_horizon : rates_by_future) {
      for (auto& sum : per_horizon) sum.assign(n_ * n_, 0.0f);
    }
    for (auto& sum : use_by_future) sum.assign(n_ * n_, 0.0f);
    for (auto& per_input : inputs) {
      for (auto& sum : per_input) sum.assign(n_ * n_, 0.0f);
    }
    for (auto& per_other : last_rates) {
      for (auto& sum : per_other) sum.assign(n_ * n_, 0.0f);
    }
    mean_rates.assign(kFeatures * n_, 0.0);
    mean_use.assign(n_, 0.0);
    mean_future.assign(kHorizons * n_, 0.0);
    own_gram.assign(n_ * (kOwn + 1) * (kOwn + 1), 0.0);
    own_cross.assign(n_ * (kOwn + 1) * (1 + kHorizons), 0.0);
  }

  size_t n() const { return n_; }
  size_t layers() const { return base_.size() - 1; }
  size_t base(size_t layer) const { return base_[layer]; }

  void Add(const FitSequence& sequence) {
    const size_t width = layers() * top_k_;
    const size_t count = sequence.chosen.size() / width;
    rates_.assign(kFeatures * n_, 0.0f);
    blurred_.assign(kHorizons * kFeatures * n_, 0.0f);
    blurred_use_.assign(kHorizons * n_, 0.0f);
    own_.assign(kOwn * n_, 0.0f);
    blurred_own_.assign(kHorizons * (kOwn + 1) * n_, 0.0f);
    for (size_t row = 0; row < count; ++row) {
      AddRow(sequence.chosen.subspan(row * width, width),
             sequence.weights.subspan(row * width, width));
    }
    FlushBlock();
    for (size_t f = 0; f < kFeatures; ++f) {
      for (size_t g = 0; g <= f; ++g) AddLastRates(f, g);
    }
    rows += count;
  }

  size_t rows = 0;
  // [feature][input]: sum over rows of input(row) x rate before it.
  std::array<std::array<std::vector<float>, kInputs>, kFeatures> rates_by_input;
  // [horizon][feature]: sum of future after the row x rate before it.
  std::array<std::array<std::vector<float>, kFeatures>, kHorizons> rates_by_future;
  // [horizon]: sum of future after the row x use in it.
  std::array<std::vector<float>, kHorizons> use_by_future;
  // [input][input]: sum of products within a row.
  std::array<std::array<std::vector<float>, kInputs>, kInputs> inputs;
  // [feature][other <= feature]: sum over sequences of the products of the rates after their end.
  std::array<std::array<std::vector<float>, kFeatures>, kFeatures> last_rates;
  std::vector<double> mean_rates;   // [features, N] sums, until divided
  std::vector<double> mean_use;     // [N]
  std::vector<double> mean_future;  // [horizons, N]
  std::vector<double> own_gram;     // [N, own + 1, own + 1]
  std::vector<double> own_cross;    // [N, own + 1, next and horizons]

 private:
  struct Used {
    size_t row = 0;  // in the block
    float weight = 0;
  };

  void AddRow(std::span<const uint16_t> chosen, std::span<const float> weights) {
    if (block_.rows == 0) {
      block_.used.assign(n_, {});
      block_.list.clear();
    }
    const size_t at = block_.rows++;
    block_.rates.insert(block_.rates.end(), rates_.begin(), rates_.end());
    block_.blurred.insert(block_.blurred.end(), blurred_.begin(), blurred_.end());
    block_.blurred_use.insert(block_.blurred_use.end(), blurred_use_.begin(), blurred_use_.end());
    now_.clear();
    for (size_t layer = 0; layer < layers(); ++layer) {
      for (size_t j = 0; j < top_k_; ++j) {
        const size_t e = base_[layer] + chosen[layer * top_k_ + j];
        const bool again = std::any_of(now_.begin(), now_.end(),
                                       [&](const auto& used) { return used.first == e; });
        if (!again) now_.emplace_back(e, weights[layer * top_k_ + j]);
      }
    }
    for (const auto& [e, weight] : now_) block_.used[e].push_back({at, weight});
    block_.list.push_back(now_);
    AddOwn();
    for (size_t i = 0; i < kFeatures * n_; ++i) mean_rates[i] += rates_[i];
    for (const auto& [e, weight] : now_) mean_use[e] += 1;
    // The future after a row, summed over rows, is the past before a use, summed over uses.
    for (size_t h = 0; h < kHorizons; ++h) {
      const auto g = static_cast<float>(kForecastDiscounts[h]);
      for (size_t f = 0; f < kFeatures; ++f) {
        float* blurred = blurred_.data() + (h * kFeatures + f) * n_;
        const float* rates = rates_.data() + f * n_;
        for (size_t i = 0; i < n_; ++i) blurred[i] = g * blurred[i] + (1 - g) * rates[i];
      }
      float* blurred = blurred_use_.data() + h * n_;
      for (size_t i = 0; i < n_; ++i) blurred[i] *= g;
      for (const auto& [e, weight] : now_) blurred[e] += 1 - g;
    }
    for (size_t f = 0; f < kFeatures; ++f) {
      const auto decay = static_cast<float>(DecayOf(kForecastHalfLives[f]));
      float* rates = rates_.data() + f * n_;
      for (size_t i = 0; i < n_; ++i) rates[i] = rates[i] < 1e-9f ? 0.0f : decay * rates[i];
      for (const auto& [e, weight] : now_) {
        rates[e] += (1 - decay) * (InputOf(f) == 0 ? 1.0f : weight);
      }
    }
    if (block_.rows == kBlockRows) FlushBlock();
  }

  // Each expert's own rates: a small regression of its own. Sums of futures as above.
  void AddOwn() {
    constexpr size_t kSize = kOwn + 1;
    std::array<float, kSize> x;
    for (size_t i = 0; i < n_; ++i) {
      for (size_t h = 0; h < kOwn; ++h) x[h] = own_[h * n_ + i];
      x[kOwn] = 1;
      double* gram = own_gram.data() + i * kSize * kSize;
      for (size_t a = 0; a < kSize; ++a) {
        for (size_t b = 0; b <= a; ++b) gram[a * kSize + b] += static_cast<double>(x[a]) * x[b];
      }
    }
    for (const auto& [e, weight] : now_) {
      for (size_t a = 0; a < kSize; ++a) {
        double* cross = own_cross.data() + (e * kSize + a) * (1 + kHorizons);
        cross[0] += a < kOwn ? own_[a * n_ + e] : 1;
        for (size_t h = 0; h < kHorizons; ++h) {
          cross[1 + h] += blurred_own_[(h * kSize + a) * n_ + e];
        }
      }
      for (size_t h = 0; h < kHorizons; ++h) {
        mean_future[h * n_ + e] += blurred_own_[(h * kSize + kOwn) * n_ + e];
      }
    }
    for (size_t h = 0; h < kHorizons; ++h) {
      const auto g = static_cast<float>(kForecastDiscounts[h]);
      for (size_t a = 0; a < kSize; ++a) {
        float* blurred = blurred_own_.data() + (h * kSize + a) * n_;
        for (size_t i = 0; i < n_; ++i) {
          blurred[i] = g * blurred[i] + (1 - g) * (a < kOwn ? own_[a * n_ + i] : 1.0f);
        }
      }
    }
    for (size_t a = 0; a < kOwn; ++a) {
      const auto decay = static_cast<float>(DecayOf(kForecastOwnHalfLives[a]));
      float* rates = own_.data() + a * n_;
      for (size_t i = 0; i < n_; ++i) rates[i] = rates[i] < 1e-9f ? 0.0f : decay * rates[i];
      for (const auto& [e, weight] : now_) rates[e] += 1 - decay;
    }
  }

  // Adds the products of the gathered rows: sum by sum, and line by line within it, so that the
  // gathered rates and the line both stay in the cache.
  void FlushBlock() {
    for (size_t f = 0; f < kFeatures; ++f) {
      const float* rates = block_.rates.data() + f * n_;
      Accumulate(rates, kFeatures * n_, false, &rates_by_input[f][0]);
      Accumulate(rates, kFeatures * n_, true, &rates_by_input[f][1]);
      for (size_t h = 0; h < kHorizons; ++h) {
        Accumulate(block_.blurred.data() + (h * kFeatures + f) * n_, kHorizons * kFeatures * n_,
                   false, &rates_by_future[h][f]);
      }
    }
    for (size_t h = 0; h < kHorizons; ++h) {
      Accumulate(block_.blurred_use.data() + h * n_, kHorizons * n_, false, &use_by_future[h]);
    }
    for (const auto& row : block_.list) {
      for (const auto& [e, weight] : row) {
        for (const auto& [other, other_weight] : row) {
          inputs[0][0][e * n_ + other] += 1;
          inputs[0][1][e * n_ + other] += other_weight;
          inputs[1][0][e * n_ + other] += weight;
          inputs[1][1][e * n_ + other] += weight * other_weight;
        }
      }
    }
    block_ = {};
  }

  // sum[e] += line of each row that uses e, by its weight if wanted.
  void Accumulate(const float* lines, size_t stride, bool weighted, std::vector<float>* sum) {
    for (size_t e = 0; e < block_.used.size(); ++e) {
      for (const Used& used : block_.used[e]) {
        dense::AddScaled(weighted ? used.weight : 1.0f, lines + used.row * stride, n_,
                         sum->data() + e * n_);
      }
    }
  }

  void AddLastRates(size_t f, size_t g) {
    const float* a = rates_.data() + f * n_;
    const float* b = rates_.data() + g * n_;
    float* sum = last_rates[f][g].data();
    for (size_t i = 0; i < n_; ++i) {
      if (a[i] != 0) dense::AddScaled(a[i], b, n_, sum + i * n_);
    }
  }

  const size_t top_k_;
  std::vector<size_t> base_;
  size_t n_ = 0;
  std::vector<float> rates_;        // [features, N] before the present row
  std::vector<float> blurred_;      // [horizons, features, N] rates, seen from the rows after
  std::vector<float> blurred_use_;  // [horizons, N]
  std::vector<float> own_;          // [own, N]
  std::vector<float> blurred_own_;  // [horizons, own + 1, N]
  std::vector<std::pair<size_t, float>> now_;
  struct Block {
    size_t rows = 0;
    std::vector<float> rates;
    std::vector<float> blurred;
    std::vector<float> blurred_use;
    std::vector<std::vector<Used>> used;                      // by expert
    std::vector<std::vector<std::pair<size_t, float>>> list;  // by row
  } block_;
};

// The regression's normal equations. Inputs: rates of all features, then the uses of the row
// itself, layer by layer; targets: future use by horizon. All about their means.
struct Equations {
  size_t n = 0;
  size_t size = 0;           // inputs
  size_t columns = 0;        // of `cross`
  std::vector<float> gram;   // [size, size] lower triangle, with the ridge
  std::vector<float> cross;  // [size, columns]
};

Equations MakeEquations(const Moments& m, const NextUseFitOptions& options) {
  Equations eq;
  const size_t n = eq.n = m.n();
  eq.size = (kFeatures + 1) * n;
  eq.columns = kHorizons * n;
  eq.gram.assign(eq.size * eq.size, 0.0f);
  eq.cross.assign(eq.size * eq.columns, 0.0f);
  const auto rows = static_cast<double>(m.rows);
  const double* use = m.mean_use.data();
  for (size_t f = 0; f < kFeatures; ++f) {
    const double* mean_f = m.mean_rates.data() + f * n;
    for (size_t g = 0; g <= f; ++g) {
      // From rate(row + 1) = d rate(row) + (1 - d) input(row), summed over rows.
      const double df = DecayOf(kForecastHalfLives[f]);
      const double dg = DecayOf(kForecastHalfLives[g]);
      const std::vector<float>& fg = m.rates_by_input[f][InputOf(g)];  // [input of g, rate f]
      const std::vector<float>& gf = m.rates_by_input[g][InputOf(f)];  // [input of f, rate g]
      const std::vector<float>& both = m.inputs[InputOf(f)][InputOf(g)];
      const double* mean_g = m.mean_rates.data() + g * n;
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
          const double sum =
              (df * (1 - dg) * fg[j * n + i] + (1 - df) * dg * gf[i * n + j] +
               (1 - df) * (1 - dg) * both[i * n + j] - m.last_rates[f][g][i * n + j]) /
              (1 - df * dg);
          eq.gram[(f * n + i) * eq.size + g * n + j] =
              static_cast<float>(sum - mean_f[i] * mean_g[j] / rows);
        }
      }
    }
    for (size_t i = 0; i < n; ++i) {
      for (size_t e = 0; e < n; ++e) {
        eq.gram[(kFeatures * n + e) * eq.size + f * n + i] =
            static_cast<float>(m.rates_by_input[f][0][e * n + i] - use[e] * mean_f[i] / rows);
        for (size_t h = 0; h < kHorizons; ++h) {
          eq.cross[(f * n + i) * eq.columns + h * n + e] = static_cast<float>(
              m.rates_by_future[h][f][e * n + i] - m.mean_future[h * n + e] * mean_f[i] / rows);
        }
      }
    }
  }
  for (size_t i = 0; i < n; ++i) {
    float* line = eq.gram.data() + (kFeatures * n + i) * eq.size + kFeatures * n;
    for (size_t j = 0; j <= i; ++j) {
      line[j] = static_cast<float>(m.inputs[0][0][i * n + j] - use[i] * use[j] / rows);
    }
    for (size_t h = 0; h < kHorizons; ++h) {
      for (size_t e = 0; e < n; ++e) {
        eq.cross[(kFeatures * n + i) * eq.columns + h * n + e] = static_cast<float>(
            m.use_by_future[h][e * n + i] - m.mean_future[h * n + e] * use[i] / rows);
      }
    }
  }
  for (size_t i = 0; i < eq.size; ++i) {
    const size_t f = i / n;
    const double ridge = f < kFeatures ? options.ridge[f] : options.ridge_layers;
    float& diagonal = eq.gram[i * eq.size + i];
    // An input that never varies gets a penalty of its own, so that the matrix stays definite.
    diagonal += static_cast<float>(ridge * std::max(diagonal / rows, 1e-9) + 1e-3);
  }
  return eq;
}

// Cholesky of a small symmetric system, in place; x overwrites b.
bool SolveSmall(size_t n, double* a, double* b, size_t columns) {
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i <= j; ++i) {
      double sum = a[j * n + i];
      for (size_t p = 0; p < i; ++p) sum -= a[j * n + p] * a[i * n + p];
      if (i < j) {
        a[j * n + i] = sum / a[i * n + i];
      } else if (sum > 0) {
        a[j * n + j] = std::sqrt(sum);
      } else {
        return false;
      }
    }
  }
  for (size_t c = 0; c < columns; ++c) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t p = 0; p < i; ++p) b[i * columns + c] -= a[i * n + p] * b[p * columns + c];
      b[i * columns + c] /= a[i * n + i];
    }
    for (size_t i = n; i-- > 0;) {
      for (size_t p = i + 1; p < n; ++p) b[i * columns + c] -= a[p * n + i] * b[p * columns + c];
      b[i * columns + c] /= a[i * n + i];
    }
  }
  return true;
}

void FitOwn(const Moments& m, const NextUseFitOptions& options, NextUseModel* model) {
  constexpr size_t kSize = kOwn + 1;
  const size_t n = m.n();
  const size_t targets = model->targets();
  for (size_t i = 0; i < n; ++i) {
    std::array<double, kSize * kSize> gram;
    std::array<double, kSize*(1 + kHorizons)> cross;
    std::copy_n(m.own_gram.begin() + static_cast<ptrdiff_t>(i * gram.size()), gram.size(),
                gram.begin());
    std::copy_n(m.own_cross.begin() + static_cast<ptrdiff_t>(i * cross.size()), cross.size(),
                cross.begin());
    const auto rows = static_cast<double>(m.rows);
    for (size_t a = 0; a < kOwn; ++a) {
      const double mean = gram[kOwn * kSize + a] / rows;
      const double variance = gram[a * kSize + a] / rows - mean * mean;
      gram[a * kSize + a] += options.ridge_own * std::max(variance, 1e-9) + 1e-6;
    }
    if (!SolveSmall(kSize, gram.data(), cross.data(), 1 + kHorizons)) cross.fill(0);
    for (size_t a = 0; a < kSize; ++a) {
      for (size_t t = 0; t <= kHorizons; ++t) {
        model->own[a * targets + t * n + i] =
            static_cast<float>(options.own_share * cross[a * (1 + kHorizons) + t]);
      }
    }
  }
}

void FitStates(const Moments& m, const Equations& eq, const NextUseFitOptions& options,
               NextUseModel* model) {
  // Whitened targets: next is the part of the factor below the rates, the futures are solved for.
  const size_t n = eq.n;
  const size_t states = kFeatures * n;
  const size_t targets = model->targets();
  std::vector<float> white(states * targets);
  for (size_t i = 0; i < states; ++i) {
    for (size_t e = 0; e < n; ++e) {
      white[i * targets + e] = eq.gram[(states + e) * eq.size + i];
    }
    std::copy_n(eq.cross.begin() + static_cast<ptrdiff_t>(i * eq.columns), eq.columns,
                white.begin() + static_cast<ptrdiff_t>(i * targets + n));
  }
  // The best map of this rank for the fitted values is the projection on their leading directions.
  const auto rank = static_cast<size_t>(model->rank);
  model->state_out = dense::LeadingRightVectors(white.data(), targets, states, targets, rank);
  std::vector<float> turned(targets * rank);
  for (size_t r = 0; r < rank; ++r) {
    for (size_t t = 0; t < targets; ++t) turned[t * rank + r] = model->state_out[r * targets + t];
  }
  model->state_in.assign(states * rank, 0.0f);
  dense::AddProduct(1, white.data(), targets, turned.data(), rank, states, rank, targets,
                    model->state_in.data(), rank);
  dense::SolveLowerTransposed(eq.gram.data(), eq.size, states, model->state_in.data(), rank, rank);

  const auto rows = static_cast<double>(m.rows);
  std::vector<double> offset(rank, 0.0);
  for (size_t i = 0; i < states; ++i) {
    for (size_t r = 0; r < rank; ++r) {
      offset[r] += m.mean_rates[i] / rows * model->state_in[i * rank + r];
    }
  }
  const auto share = static_cast<float>(1 - options.own_share);
  for (size_t t = 0; t < targets; ++t) {
    double bias = (t < n ? m.mean_use[t] : m.mean_future[t - n]) / rows;
    for (size_t r = 0; r < rank; ++r) bias -= offset[r] * model->state_out[r * targets + t];
    model->bias[t] = share * static_cast<float>(bias);
    for (size_t r = 0; r < rank; ++r) model->state_out[r * targets + t] *= share;
  }
}

void FitGains(const Moments& m, const Equations& eq, NextUseModel* model) {
  const size_t n = eq.n;
  const size_t targets = model->targets();
  const auto gain_rank = static_cast<size_t>(model->gain_rank);
  for (size_t layer = 0; layer < m.layers(); ++layer) {
    const size_t first = m.base(layer);
    const size_t count = m.base(layer + 1) - first;
    const size_t at = kFeatures * n + first;  // in the equations
    // What the whitened innovation of this layer does to each target: [count, targets].
    std::vector<float> effect(count * targets, 0.0f);
    for (size_t i = 0; i < count; ++i) {
      for (size_t e = first + count; e < n; ++e) {
        effect[i * targets + e] = eq.gram[(kFeatures * n + e) * eq.size + at + i];
      }
      std::copy_n(eq.cross.begin() + static_cast<ptrdiff_t>((at + i) * eq.columns), eq.columns,
                  effect.begin() + static_cast<ptrdiff_t>(i * targets + n));
    }
    // Leading left directions of `effect`: the right ones of its transpose.
    std::vector<float> turned(targets * count);
    for (size_t i = 0; i < count; ++i) {
      for (size_t t = 0; t < targets; ++t) turned[t * count + i] = effect[i * targets + t];
    }
    std::vector<float> left = dense::LeadingRightVectors(turned.data(), count, targets, count,
                                                         std::min(gain_rank, count));
    left.resize(gain_rank * count, 0.0f);
    float* out = model->gain_out.data() + layer * gain_rank * targets;
    dense::AddProduct(1, left.data(), count, effect.data(), targets, gain_rank, targets, count, out,
                      targets);
    std::vector<float> in(count * gain_rank);
    for (size_t r = 0; r < gain_rank; ++r) {
      for (size_t i = 0; i < count; ++i) in[i * gain_rank + r] = left[r * count + i];
    }
    dense::SolveLowerTransposed(eq.gram.data() + at * eq.size + at, eq.size, count, in.data(),
                                gain_rank, gain_rank);
    std::copy(in.begin(), in.end(),
              model->gain_in.begin() + static_cast<ptrdiff_t>(first * gain_rank));
  }
}

Status CheckInputs(std::span<const int32_t> experts, int32_t top_k,
                   std::span<const FitSequence> sequences) {
  int64_t total = 0;
  for (const int32_t count : experts) total += count;
  if (experts.empty() || top_k < 1 || total > kFitExpertsMax) {
    return InvalidArgument("a forecaster of " + std::to_string(total) +
                           " experts cannot be fitted; the limit is " +
                           std::to_string(kFitExpertsMax));
  }
  const size_t width = experts.size() * static_cast<size_t>(top_k);
  size_t rows = 0;
  for (const FitSequence& sequence : sequences) {
    if (sequence.chosen.size() % width != 0 || sequence.weights.size() != sequence.chosen.size()) {
      return InvalidArgument("a sequence whose columns differ in length");
    }
    for (size_t i = 0; i < sequence.chosen.size(); ++i) {
      const auto layer = i % width / static_cast<size_t>(top_k);
      if (sequence.chosen[i] >= experts[layer] || !std::isfinite(sequence.weights[i])) {
        return InvalidArgument("a sequence names an expert that its layer does not have");
      }
    }
    rows += sequence.chosen.size() / width;
  }
  if (rows < kFitRowsMin) {
    return InvalidArgument(std::to_string(rows) + " tokens to train on; at least " +
                           std::to_string(kFitRowsMin) + " are needed");
  }
  return OkStatus();
}

}  // namespace

Result<NextUseModel> FitNextUse(std::span<const int32_t> experts, int32_t top_k,
                                std::span<const FitSequence> sequences,
                                const NextUseFitOptions& options) {
  RETURN_IF_ERROR(CheckInputs(experts, top_k, sequences));
  Moments moments(experts, top_k);
  for (const FitSequence& sequence : sequences) {
    if (!sequence.chosen.empty()) moments.Add(sequence);
  }
  Equations eq = MakeEquations(moments, options);
  if (!dense::Cholesky(eq.size, eq.gram.data(), eq.size)) {
    return InvalidArgument("the regression has no solution; a larger ridge would give it one");
  }
  dense::SolveLower(eq.gram.data(), eq.size, eq.size, eq.cross.data(), eq.columns, eq.columns);

  NextUseModel model;
  model.experts.assign(experts.begin(), experts.end());
  const size_t n = moments.n();
  model.rank = std::min(options.rank, static_cast<int32_t>(kFeatures * n));
  model.gain_rank = options.gain_rank;
  const size_t targets = model.targets();
  model.bias.resize(targets);
  model.own.resize((kOwn + 1) * targets);
  model.gain_in.resize(n * static_cast<size_t>(model.gain_rank));
  model.gain_out.resize(moments.layers() * static_cast<size_t>(model.gain_rank) * targets);
  FitOwn(moments, options, &model);
  FitStates(moments, eq, options, &model);
  FitGains(moments, eq, &model);
  RETURN_IF_ERROR(CheckNextUseModel(model));
  return model;
}

}  // namespace expertflow
