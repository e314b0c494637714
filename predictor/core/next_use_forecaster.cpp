#include "predictor/core/next_use_forecaster.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/wide.h"

namespace expertflow {
namespace {

constexpr int32_t kLayersMax = 1024;
constexpr int32_t kExpertsTotalMax = 1 << 16;
constexpr int32_t kRankMax = 1024;
constexpr float kTiny = 1e-9f;  // decayed numbers below this are zero: denormal ones are slow
constexpr float kSmallest = 1e-3f;
constexpr float kLargest = 0.999f;

// Turnover: a cache of r passes' demand keeps an expert for about 2 r tokens, which is the mean
// horizon 1 / (1 - g) that ranks it best. Fitted by hand to nine cells of one trace.
double DiscountFor(double slots_per_demand) {
  if (!(slots_per_demand > 0)) return 0;
  return std::clamp(1 - 0.5 / slots_per_demand, kForecastDiscounts[0],
                    kForecastDiscounts[kForecastHorizons - 1]);
}

float DecayOf(double half_life) {
  return static_cast<float>(std::exp2(-1 / half_life));
}

EXPERTFLOW_WIDE void AddScaled(float scale, const float* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) to[i] += scale * from[i];
}

// to += scales[0] * rows[0] + ... of `rows` rows that lie `stride` numbers apart. Four at a time:
// that many fewer passes over `to`.
EXPERTFLOW_WIDE void AddScaledRows(const float* scales, const float* from, size_t rows,
                                   size_t stride, size_t count, float* to) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* a = from + r * stride;
    const float* b = a + stride;
    const float* c = b + stride;
    const float* d = c + stride;
    const float sa = scales[r];
    const float sb = scales[r + 1];
    const float sc = scales[r + 2];
    const float sd = scales[r + 3];
    for (size_t i = 0; i < count; ++i) {
      to[i] += (sa * a[i] + sb * b[i]) + (sc * c[i] + sd * d[i]);
    }
  }
  for (; r < rows; ++r) {
    const float* a = from + r * stride;
    for (size_t i = 0; i < count; ++i) to[i] += scales[r] * a[i];
  }
}

EXPERTFLOW_WIDE void Decay(float decay, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i] * decay;
    values[i] = value < kTiny && value > -kTiny ? 0.0f : value;
  }
}

// Within what a sane forecast may be, so that no sequence teaches more than a little. Not to 0..1:
// a linear forecast is right on average only with the part of it that is beyond.
inline float Bounded(float p) {
  const float known = p == p ? p : 0.0f;
  const float up = known > -1.0f ? known : -1.0f;
  return up < 2.0f ? up : 2.0f;
}

// What a learning rate takes off for each forecast.
EXPERTFLOW_WIDE void StepsDown(float learning_rate, const float* forecast, size_t count,
                               float* step) {
  for (size_t i = 0; i < count; ++i) step[i] = -learning_rate * Bounded(forecast[i]);
}

EXPERTFLOW_WIDE void Blend(float kept, const float* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    const float value = kept * to[i] + (1.0f - kept) * from[i];
    to[i] = value < kTiny ? 0.0f : value;
  }
}

EXPERTFLOW_WIDE void AddProduct(const float* a, const float* b, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) to[i] += a[i] * b[i];
}

// Written so that it becomes a vector instruction, which std::clamp does not.
inline float Clamped(float p) {
  const float up = p > kSmallest ? p : kSmallest;
  return up < kLargest ? up : kLargest;
}

EXPERTFLOW_WIDE void Complement(const float* forecast, size_t count, float* product) {
  for (size_t i = 0; i < count; ++i) {
    const float p = Clamped(forecast[i]);
    product[i] *= 1.0f - p;
  }
}

// Distances() of a single sequence's forecasts.
EXPERTFLOW_WIDE void DistancesOfOne(const float* next, const float* later, float layers_ahead,
                                    size_t count, uint32_t* distance) {
  for (size_t i = 0; i < count; ++i) {
    const float n = Clamped(next[i]);
    const float l = Clamped(later[i]);
    const float steps = layers_ahead + (1.0f - n) / (1.0f - (1.0f - l));
    distance[i] = static_cast<uint32_t>(static_cast<int32_t>(steps * 1024.0f));
  }
}

EXPERTFLOW_WIDE void Distances(const float* not_next, const float* not_later, float layers_ahead,
                               size_t count, uint32_t* distance) {
  for (size_t i = 0; i < count; ++i) {
    const float steps = layers_ahead + not_next[i] / (1.0f - not_later[i]);
    distance[i] = static_cast<uint32_t>(static_cast<int32_t>(steps * 1024.0f));
  }
}

// chosen[j] came before: a router of a damaged trace may name an expert twice.
bool Repeated(std::span<const uint16_t> chosen, size_t j) {
  return std::find(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(j), chosen[j]) !=
         chosen.begin() + static_cast<ptrdiff_t>(j);
}

Status WrongSize(const char* what, size_t found, size_t expected) {
  return InvalidArgument("forecaster: " + std::string(what) + " has " + std::to_string(found) +
                         " numbers; expected " + std::to_string(expected));
}

}  // namespace

int32_t NextUseModel::experts_total() const {
  int32_t total = 0;
  for (const int32_t count : experts) total += count;
  return total;
}

Status CheckNextUseModel(const NextUseModel& model) {
  if (model.experts.empty() || model.experts.size() > kLayersMax) {
    return InvalidArgument("forecaster: " + std::to_string(model.experts.size()) + " layers");
  }
  int64_t total = 0;
  for (const int32_t count : model.experts) {
    if (count < 1 || count > kExpertsTotalMax) {
      return InvalidArgument("forecaster: a layer of " + std::to_string(count) + " experts");
    }
    total += count;
  }
  if (total > kExpertsTotalMax || model.rank < 1 || model.rank > kRankMax || model.gain_rank < 1 ||
      model.gain_rank > kRankMax) {
    return InvalidArgument("forecaster: impossible sizes");
  }
  const auto n = static_cast<size_t>(total);
  const size_t targets = model.targets();
  const auto rank = static_cast<size_t>(model.rank);
  const auto gain_rank = static_cast<size_t>(model.gain_rank);
  const struct {
    const char* what;
    const std::vector<float>* values;
    size_t expected;
  } parts[] = {
      {"bias", &model.bias, targets},
      {"state_in", &model.state_in, kForecastFeatures * n * rank},
      {"state_out", &model.state_out, rank * targets},
      {"own", &model.own, (kForecastOwnRates + 1) * targets},
      {"gain_in", &model.gain_in, n * gain_rank},
      {"gain_out", &model.gain_out, model.experts.size() * gain_rank * targets},
  };
  for (const auto& part : parts) {
    if (part.values->size() != part.expected) {
      return WrongSize(part.what, part.values->size(), part.expected);
    }
    for (const float value : *part.values) {
      if (!std::isfinite(value) || std::abs(value) > 1e6f) {
        return InvalidArgument("forecaster: " + std::string(part.what) +
                               " has a number beyond all measure");
      }
    }
  }
  return OkStatus();
}

NextUseMap::NextUseMap(std::shared_ptr<const NextUseModel> model, double slots_per_demand)
    : model_(std::move(model)),
      total_(model_->experts_total()),
      discount_(DiscountFor(slots_per_demand)) {
  base_.push_back(0);
  for (const int32_t count : model_->experts) base_.push_back(base_.back() + count);
  // Between two fitted horizons the future use is close to linear in g.
  int32_t below = 0;
  while (below + 2 < kForecastHorizons && kForecastDiscounts[below + 1] <= discount_) ++below;
  const auto above_share =
      static_cast<float>((discount_ - kForecastDiscounts[below]) /
                         (kForecastDiscounts[below + 1] - kForecastDiscounts[below]));
  const auto n = static_cast<size_t>(total_);
  const auto combine = [&](const std::vector<float>& rows) {
    const size_t targets = model_->targets();
    std::vector<float> out(rows.size() / targets * 2 * n);
    for (size_t r = 0; r < rows.size() / targets; ++r) {
      const float* from = rows.data() + r * targets;
      const float* low = from + n * static_cast<size_t>(1 + below);
      const float* high = low + n;
      float* to = out.data() + r * 2 * n;
      for (size_t i = 0; i < n; ++i) {
        to[i] = from[i];
        to[n + i] = (1.0f - above_share) * low[i] + above_share * high[i];
      }
    }
    return out;
  };
  bias_ = combine(model_->bias);
  const auto rank = static_cast<size_t>(model_->rank);
  const auto gain_rank = static_cast<size_t>(model_->gain_rank);
  state_out_ = ByteRows(combine(model_->state_out), HalvesOf(1, rank));
  own_ = combine(model_->own);
  gain_out_ = ByteRows(combine(model_->gain_out), HalvesOf(model_->experts.size(), gain_rank));
}

ByteRowsShape NextUseMap::HalvesOf(size_t groups, size_t rows) const {
  return {.groups = groups, .rows = rows, .parts = 2, .width = static_cast<size_t>(total_)};
}

NextUseCorrections::NextUseCorrections(const NextUseModel& model, float learning_rate)
    : learning_rate(learning_rate),
      own((kForecastOwnRates + 1) * 2 * static_cast<size_t>(model.experts_total()), 0.0f) {
  CHECK(learning_rate >= 0);
}

NextUseForecaster::NextUseForecaster(const NextUseMap& map, NextUseCorrections* corrections)
    : map_(&map), corrections_(corrections) {
  const auto rank = static_cast<size_t>(map.model().rank);
  projected_.resize(kForecastFeatures * rank);
  arriving_.resize(kForecastFeatures * rank);
  own_rates_.resize((kForecastOwnRates + 1) * total());
  forecast_.resize(2 * total());
  if (corrections_ != nullptr) {
    CHECK(corrections_->own.size() == 2 * own_rates_.size());
    passed_.resize(own_rates_.size());
    next_step_.resize(total());
    later_step_.resize(total());
  }
  Reset();
}

void NextUseForecaster::Reset() {
  std::fill(projected_.begin(), projected_.end(), 0.0f);
  std::fill(arriving_.begin(), arriving_.end(), 0.0f);
  const auto constant = own_rates_.end() - static_cast<ptrdiff_t>(total());
  std::fill(own_rates_.begin(), constant, 0.0f);
  std::fill(constant, own_rates_.end(), 1.0f);
  std::fill(passed_.begin(), passed_.end(), 0.0f);
  used_.clear();
  Forecast();
}

void NextUseForecaster::Observe(int32_t layer, std::span<const uint16_t> chosen,
                                std::span<const float> weights) {
  CHECK(layer >= 0 && layer < map_->layers() && chosen.size() == weights.size());
  const NextUseModel& model = map_->model();
  const auto rank = static_cast<size_t>(model.rank);
  const auto gain_rank = static_cast<size_t>(model.gain_rank);
  const auto base = static_cast<size_t>(map_->base(layer));
  const auto count = static_cast<size_t>(model.experts[static_cast<size_t>(layer)]);
  const size_t n = total();

  // The innovation through gain_in: forecast first, then what really came.
  float innovation[kRankMax] = {};
  AddScaledRows(forecast_.data() + base, model.gain_in.data() + base * gain_rank, count, gain_rank,
                gain_rank, innovation);
  for (size_t r = 0; r < gain_rank; ++r) innovation[r] = -innovation[r];
  for (size_t j = 0; j < chosen.size(); ++j) {
    if (chosen[j] >= count || Repeated(chosen, j)) continue;
    const size_t e = base + chosen[j];
    used_.push_back(static_cast<int32_t>(e));
    AddScaled(1.0f, model.gain_in.data() + e * gain_rank, gain_rank, innovation);
    for (size_t f = 0; f < kForecastFeatures; ++f) {
      const float value = f + 1 == kForecastFeatures ? weights[j] : 1.0f;
      AddScaled(value, model.state_in.data() + (f * n + e) * rank, rank,
                arriving_.data() + f * rank);
    }
  }
  if (layer + 1 == map_->layers()) {
    EndToken();
    return;
  }
  // `next` matters for the layers to come, `later` for all.
  const size_t to_come = base + count;
  AddRows(map_->gain_out_, static_cast<size_t>(layer), to_come, {innovation, gain_rank});
}

void NextUseForecaster::AddRows(const ByteRows& rows, size_t group, size_t begin,
                                std::span<const float> weights) {
  const size_t n = total();
  rows.AddTo(group, 0, std::min(begin, n), weights, forecast_.data());
  rows.AddTo(group, 1, 0, weights, forecast_.data() + n);
}

void NextUseForecaster::ObservePrompt(int32_t layer, std::span<const RoutedToken> tokens) {
  CHECK(layer >= 0 && layer < map_->layers());
  const NextUseModel& model = map_->model();
  const auto rank = static_cast<size_t>(model.rank);
  const auto base = static_cast<size_t>(map_->base(layer));
  const auto count = static_cast<size_t>(model.experts[static_cast<size_t>(layer)]);
  const size_t n = total();
  // A token's share of a rate is 1 - decay, decayed once by each token after it.
  for (size_t f = 0; f < kForecastFeatures; ++f) {
    const float decay = DecayOf(kForecastHalfLives[f]);
    float* projected = projected_.data() + f * rank;
    float share = 1.0f - decay;
    for (size_t t = tokens.size(); t-- > 0 && share > kTiny; share *= decay) {
      const RoutedToken& token = tokens[t];
      for (size_t j = 0; j < token.chosen.size(); ++j) {
        if (token.chosen[j] >= count || Repeated(token.chosen, j)) continue;
        const float value = f + 1 == kForecastFeatures ? share * token.weights[j] : share;
        AddScaled(value, model.state_in.data() + (f * n + base + token.chosen[j]) * rank, rank,
                  arriving_.data() + f * rank);
      }
    }
    if (layer + 1 < map_->layers()) continue;
    for (size_t t = 0; t < tokens.size(); ++t) Decay(decay, rank, projected);
    AddScaled(1.0f, arriving_.data() + f * rank, rank, projected);
  }
  for (size_t h = 0; h < kForecastOwnRates; ++h) {
    const float decay = DecayOf(kForecastOwnHalfLives[h]);
    float* rates = own_rates_.data() + h * n + base;
    for (size_t t = 0; t < tokens.size(); ++t) Decay(decay, count, rates);
    float share = 1.0f - decay;
    for (size_t t = tokens.size(); t-- > 0 && share > kTiny; share *= decay) {
      for (size_t j = 0; j < tokens[t].chosen.size(); ++j) {
        const uint16_t expert = tokens[t].chosen[j];
        if (expert < count && !Repeated(tokens[t].chosen, j)) rates[expert] += share;
      }
    }
  }
  if (layer + 1 < map_->layers()) return;
  std::fill(arriving_.begin(), arriving_.end(), 0.0f);
  std::fill(passed_.begin(), passed_.end(), 0.0f);
  used_.clear();
  Forecast();
}

void NextUseForecaster::Correct() {
  const size_t n = total();
  const float learning_rate = corrections_->learning_rate;
  StepsDown(learning_rate, forecast_.data(), n, next_step_.data());
  for (const int32_t expert : used_) next_step_[static_cast<size_t>(expert)] += learning_rate;
  for (size_t h = 0; h <= kForecastOwnRates; ++h) {
    const float* rates = own_rates_.data() + h * n;
    float* passed = passed_.data() + h * n;
    float* own_next = corrections_->own.data() + h * 2 * n;
    float* own_later = own_next + n;
    AddProduct(rates, next_step_.data(), n, own_next);
    AddProduct(rates, later_step_.data(), n, own_later);
    for (const int32_t expert : used_) own_later[expert] += learning_rate * passed[expert];
    Blend(static_cast<float>(map_->discount()), rates, n, passed);
  }
}

void NextUseForecaster::EndToken() {
  if (corrections_ != nullptr) Correct();
  const auto rank = static_cast<size_t>(map_->model().rank);
  const size_t n = total();
  for (size_t f = 0; f < kForecastFeatures; ++f) {
    const float decay = DecayOf(kForecastHalfLives[f]);
    float* projected = projected_.data() + f * rank;
    Decay(decay, rank, projected);
    AddScaled(1.0f - decay, arriving_.data() + f * rank, rank, projected);
  }
  std::fill(arriving_.begin(), arriving_.end(), 0.0f);
  for (size_t h = 0; h < kForecastOwnRates; ++h) {
    const float decay = DecayOf(kForecastOwnHalfLives[h]);
    float* rates = own_rates_.data() + h * n;
    Decay(decay, n, rates);
    for (const int32_t expert : used_) rates[expert] += 1.0f - decay;
  }
  used_.clear();
  Forecast();
}

void NextUseForecaster::Forecast() {
  const auto rank = static_cast<size_t>(map_->model().rank);
  const size_t n = total();
  float state[kRankMax] = {};
  for (size_t f = 0; f < kForecastFeatures; ++f) {
    AddScaled(1.0f, projected_.data() + f * rank, rank, state);
  }
  forecast_ = map_->bias_;
  AddRows(map_->state_out_, 0, 0, {state, rank});
  AddOwn(map_->own_);
  if (corrections_ == nullptr) return;
  AddOwn(corrections_->own);
  StepsDown(corrections_->learning_rate, forecast_.data() + n, n, later_step_.data());
}

void NextUseForecaster::AddOwn(std::span<const float> own) {
  const size_t n = total();
  for (size_t h = 0; h <= kForecastOwnRates; ++h) {
    const float* rates = own_rates_.data() + h * n;
    for (size_t half = 0; half < 2; ++half) {
      AddProduct(rates, own.data() + (h * 2 + half) * n, n, forecast_.data() + half * n);
    }
  }
}

void ExpectedDistances(const NextUseMap& map, int32_t layer,
                       std::span<const NextUseForecaster* const> sequences,
                       std::span<uint32_t> distance) {
  const auto n = static_cast<size_t>(map.experts_total());
  CHECK(distance.size() == n);
  constexpr size_t kLayerExpertsMax = 1024;
  float not_next[kLayerExpertsMax];
  float not_later[kLayerExpertsMax];
  const int32_t layers = map.layers();
  for (int32_t target = 0; target < layers; ++target) {
    const bool to_come = target > layer && layer + 1 < layers;
    const int32_t ahead = target > layer ? target - layer : target - layer + layers;
    const auto end = static_cast<size_t>(map.base(target + 1));
    if (sequences.size() == 1) {
      const auto begin = static_cast<size_t>(map.base(target));
      const bool next = to_come || layer + 1 == layers;
      DistancesOfOne((next ? sequences[0]->next() : sequences[0]->later()).data() + begin,
                     sequences[0]->later().data() + begin,
                     static_cast<float>(ahead) / static_cast<float>(layers), end - begin,
                     distance.data() + begin);
      continue;
    }
    for (auto at = static_cast<size_t>(map.base(target)); at < end; at += kLayerExpertsMax) {
      const size_t count = std::min(kLayerExpertsMax, end - at);
      std::fill_n(not_next, count, 1.0f);
      std::fill_n(not_later, count, 1.0f);
      for (const NextUseForecaster* sequence : sequences) {
        // Past its last layer a token's forecast is that of the next token.
        const bool same = to_come || layer + 1 == layers;
        Complement((same ? sequence->next() : sequence->later()).data() + at, count, not_next);
        Complement(sequence->later().data() + at, count, not_later);
      }
      Distances(not_next, not_later, static_cast<float>(ahead) / static_cast<float>(layers), count,
                distance.data() + at);
    }
  }
}

}  // namespace expertflow
