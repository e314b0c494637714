// When will each expert be used again: a linear forecast from a sequence's activation pattern over
// the whole model (docs/replay.md). It ranks the victims of the expert cache.
//
// The state of a sequence is, for every expert, its decayed use at three half-lives and its decayed
// router weight at one. A low-rank map turns it into two numbers an expert: the probability `next`
// of being used when its layer comes next, and `later`, the discounted future use after that,
//     (1 - g) * sum_k g^k * used(token + 1 + k).
// Half of each comes from that map, half from the expert's own decayed rates. Within a token the
// layers already seen correct the forecast of the layers to come: what differs from the forecast of
// a layer (its innovation) moves all others by fixed gains, which are the sequential form of the
// same regression. The horizon g follows from how often the cache turns over.
//
// What runs may differ from what was fitted. So the experts' own regressions are corrected after
// every decoded token by what it used (NextUseCorrections).
//
// The model is immutable and may be shared; a forecaster belongs to one thread, and so do the
// corrections with all forecasters that share them. Pure: floating point, but every element is
// summed in one fixed order and nothing is fused, so results are equal on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "predictor/core/byte_rows.h"

namespace expertflow {

inline constexpr int32_t kForecastFeatures = 4;  // of each expert, joint map
inline constexpr int32_t kForecastOwnRates = 6;  // of each expert, its own regression
inline constexpr int32_t kForecastHorizons = 3;
// Half-lives in tokens; the last of the joint features is of router weights, the others of uses.
inline constexpr double kForecastHalfLives[kForecastFeatures] = {1, 8, 80, 3};
inline constexpr double kForecastOwnHalfLives[kForecastOwnRates] = {1, 3, 8, 24, 80, 400};
inline constexpr double kForecastDiscounts[kForecastHorizons] = {0, 0.5, 0.8};

// What `expertflow train` fits (predictor/next_use_fit.h). N experts in all, numbered through; T =
// N * (1 + horizons) targets: `next` of all experts, then `later` of all experts by horizon.
struct NextUseModel {
  std::vector<int32_t> experts;  // of each MoE layer
  int32_t rank = 0;
  int32_t gain_rank = 0;
  std::vector<float> bias;       // [T]
  std::vector<float> state_in;   // [features, N, rank]
  std::vector<float> state_out;  // [rank, T]
  std::vector<float> own;        // [own rates + 1, T] the last is the constant
  std::vector<float> gain_in;    // [N, gain_rank]
  std::vector<float> gain_out;   // [layers, gain_rank, T]

  int32_t experts_total() const;
  size_t targets() const { return static_cast<size_t>(experts_total()) * (1 + kForecastHorizons); }
};
// Sizes agree with each other and are within bounds; all numbers are finite.
Status CheckNextUseModel(const NextUseModel& model);

// The part of a model that a cache of one size needs: `later` at one horizon.
class NextUseMap {
 public:
  // REQUIRES: CheckNextUseModel(model).ok()
  NextUseMap(std::shared_ptr<const NextUseModel> model, double slots_per_demand);

  const NextUseModel& model() const { return *model_; }
  int32_t experts_total() const { return total_; }
  int32_t layers() const { return static_cast<int32_t>(model_->experts.size()); }
  int32_t base(int32_t layer) const { return base_[static_cast<size_t>(layer)]; }
  double discount() const { return discount_; }

 private:
  friend class NextUseForecaster;
  std::shared_ptr<const NextUseModel> model_;
  int32_t total_ = 0;
  double discount_ = 0;
  std::vector<int32_t> base_;  // [layers + 1]
  // Both halves of a row, `next` and `later`, have a scale of their own.
  ByteRowsShape HalvesOf(size_t groups, size_t rows) const;

  std::vector<float> bias_;  // [2N]
  ByteRows state_out_;       // [rank, 2N]
  std::vector<float> own_;   // [own rates + 1, 2N]
  ByteRows gain_out_;        // [layers, gain_rank, 2N]
};

// What running adds to the experts' own regressions, shared by all sequences of a worker: zero at
// first, kept when sequences end and when the horizon moves. For every expert and every own rate x
// before a token (and x = 1), with u = 1 if the token used the expert and else 0:
//     own[next]  += learning_rate * (u - next) * x
//     own[later] += learning_rate * (u * z - later * x), then z = g * z + (1 - g) * x.
// `next` is the forecast when the layer came, `later` that when the token began, both cut to -1..2.
// The first is the gradient step of the squared error. Summed over a sequence so is the second, in
// another order: u counts in the future of all tokens before, whose x discounted to here is z. z
// starts at zero with a sequence and after a prompt; prompts teach nothing.
struct NextUseCorrections {
  // REQUIRES: learning_rate >= 0. A step for every sequence in a batch must not overshoot: there
  // are own rates + 1 inputs of at most 1, so that many times rate times sequences stays below 1.
  NextUseCorrections(const NextUseModel& model, float learning_rate);

  float learning_rate;
  std::vector<float> own;  // [own rates + 1, 2N] next, later; the last is the constant
};

// What the router of one layer chose for one token.
struct RoutedToken {
  std::span<const uint16_t> chosen;  // [top_k]
  std::span<const float> weights;    // [top_k]
};

// The forecast of one sequence.
class NextUseForecaster {
 public:
  // Without `corrections` the forecast is that of the model. REQUIRES: both outlive it;
  // `corrections` are of the map's model.
  explicit NextUseForecaster(const NextUseMap& map, NextUseCorrections* corrections = nullptr);

  void Reset();  // a new sequence
  // The router's choice in `layer` of the present token. Layers come in order, each once a token;
  // the last one ends the token. Experts out of range or named twice are left out.
  void Observe(int32_t layer, std::span<const uint16_t> chosen, std::span<const float> weights);

  // The same for tokens of a prompt, a layer at a time for all of them: what they leave in the
  // state is as if they had come one by one, but there is no forecast before the last layer.
  void ObservePrompt(int32_t layer, std::span<const RoutedToken> tokens);

  // [N] as of the latest Observe(): of layers that the token has yet to pass, `next` is about this
  // token and `later` about those after it; of the others `later` is about the next token on.
  std::span<const float> next() const { return {forecast_.data(), total()}; }
  std::span<const float> later() const { return {forecast_.data() + total(), total()}; }

 private:
  size_t total() const { return static_cast<size_t>(map_->experts_total()); }
  void EndToken();
  void Correct();  // from the token that ends
  void Forecast();
  // forecast_ += the products of the own rates with `own` [own rates + 1, 2N].
  void AddOwn(std::span<const float> own);
  // forecast_ += weights * the rows of a group of `rows`, from column `begin` on.
  void AddRows(const ByteRows& rows, size_t group, size_t begin, std::span<const float> weights);

  const NextUseMap* map_;
  NextUseCorrections* corrections_;
  std::vector<float> projected_;  // [features, rank] the state through state_in
  std::vector<float> arriving_;   // [features, rank] what this token adds
  std::vector<float> own_rates_;  // [own rates + 1, N] the last is 1
  std::vector<int32_t> used_;     // by this token so far, numbered through
  std::vector<float> forecast_;   // [2N] next, later
  // Where there are corrections:
  std::vector<float> passed_;      // [own rates + 1, N] z above
  std::vector<float> next_step_;   // [N] learning_rate * (u - next)
  std::vector<float> later_step_;  // [N] -learning_rate * later, when the token began
};

// Ranks all experts by their expected distance to the next use, for sequences in one batch.
// distance[i], in 1/1024 steps: layers until it comes again / all layers, plus the expected steps
// after that. The union of sequences is used when any of them uses it.
void ExpectedDistances(const NextUseMap& map, int32_t layer,
                       std::span<const NextUseForecaster* const> sequences,
                       std::span<uint32_t> distance);

}  // namespace expertflow
