#include "predictor/hybrid_eval.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "common/cpu_time.h"
#include "predictor/core/live_predictor.h"
#include "predictor/parallel_for.h"

namespace expertflow {
namespace {

constexpr size_t kParts = 8;

constexpr std::array<std::pair<JudgedArm, PredictionArm>, 4> kPredicting = {
    {{JudgedArm::kPreGate, PredictionArm::kPreGate},
     {JudgedArm::kProbe, PredictionArm::kProbe},
     {JudgedArm::kForest, PredictionArm::kForest},
     {JudgedArm::kForestProbe, PredictionArm::kForestProbe}}};

// The `count` likeliest, ties to the lowest number.
std::vector<uint16_t> Likeliest(std::span<const float> probability, size_t count) {
  std::vector<uint16_t> order(probability.size());
  std::iota(order.begin(), order.end(), uint16_t{0});
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [&](uint16_t a, uint16_t b) {
                      return probability[a] != probability[b] ? probability[a] > probability[b]
                                                              : a < b;
                    });
  order.resize(count);
  return order;
}

uint64_t Common(std::span<const uint16_t> predicted, std::span<const uint16_t> chosen) {
  return static_cast<uint64_t>(std::count_if(chosen.begin(), chosen.end(), [&](uint16_t expert) {
    return std::find(predicted.begin(), predicted.end(), expert) != predicted.end();
  }));
}

// Judges the tokens of some sequences.
class Judge {
 public:
  Judge(std::shared_ptr<const HybridModel> model, const FeatureTrace& trace, size_t step)
      : model_(std::move(model)),
        trace_(trace),
        step_(step),
        k_(static_cast<size_t>(model_->top_k)) {
    result.layers = model_->layers();
    for (auto& by_kind : result.score) {
      for (auto& scores : by_kind) scores.resize(static_cast<size_t>(result.layers));
    }
    for (int32_t l = 0; l < model_->layers(); ++l) {
      const std::span<const float> base =
          std::span(model_->base)
              .subspan(model_->BaseOf(l),
                       static_cast<size_t>(model_->experts[static_cast<size_t>(l)]));
      frequent_.push_back(Likeliest(base, 2 * k_));
    }
  }

  // `phase`: which tokens of the sequence are judged.
  void Run(size_t sequence, size_t phase) {
    HybridPredictor predictor(model_);
    std::vector<float> residual(static_cast<size_t>(model_->hidden));
    std::vector<float> weights(k_);
    for (size_t at = 0; at < trace_.length(sequence); ++at) {
      const bool judged = (at + phase) % step_ == 0;
      result.tokens += judged ? 1 : 0;
      predictor.BeginToken(trace_.TokenId(sequence, at));
      for (int32_t layer = 0; layer < model_->layers(); ++layer) {
        trace_.RouterState(sequence, at, layer, residual);
        trace_.Weights(sequence, at, layer, weights);
        predictor.ObserveRouter(layer, residual, trace_.Chosen(sequence, at, layer), weights);
        if (!judged) continue;
        JudgeLayer(predictor, sequence, at, layer, StateKind::kRouter);
        if (layer + 1 == model_->layers()) continue;
        trace_.ExpertResidual(sequence, at, layer, residual);
        predictor.ObserveExperts(layer, residual);
        JudgeLayer(predictor, sequence, at, layer, StateKind::kExperts);
      }
    }
  }

  HybridJudgement result;

 private:
  void Count(JudgedArm arm, StateKind kind, int32_t layer, int32_t distance,
             std::span<const uint16_t> chosen, std::span<const uint16_t> predicted) {
    HybridScore& score =
        result.score[static_cast<size_t>(arm)][static_cast<size_t>(kind)]
                    [static_cast<size_t>(layer)][static_cast<size_t>(distance - 1)];
    score.uses += chosen.size();
    score.hits += Common(predicted.first(std::min(k_, predicted.size())), chosen);
    score.hits_twice += Common(predicted, chosen);
  }

  void JudgeLayer(HybridPredictor& predictor, size_t sequence, size_t at, int32_t layer,
                  StateKind kind) {
    const int32_t distances = model_->DistancesFrom(layer);
    for (const auto& [judged, arm] : kPredicting) {
      predictor.Evaluate(arm, distances);
      auto& bins = result.reliability[static_cast<size_t>(judged)][static_cast<size_t>(kind)];
      for (int32_t d = 1; d <= distances; ++d) {
        const auto chosen = trace_.Chosen(sequence, at, layer + d);
        const std::span<const float> probability = predictor.Probabilities(d);
        Count(judged, kind, layer, d, chosen, Likeliest(probability, 2 * k_));
        for (size_t e = 0; e < probability.size(); ++e) {
          const auto place = static_cast<size_t>(probability[e] * kReliabilityBins);
          ReliabilityBin& bin = bins[std::min(place, kReliabilityBins - 1)];
          ++bin.predictions;
          bin.probability += probability[e];
          bin.used += std::find(chosen.begin(), chosen.end(), e) != chosen.end() ? 1 : 0;
        }
      }
    }
    for (int32_t d = 1; d <= distances; ++d) {
      const auto chosen = trace_.Chosen(sequence, at, layer + d);
      Count(JudgedArm::kFrequency, kind, layer, d, chosen,
            frequent_[static_cast<size_t>(layer) + static_cast<size_t>(d)]);
      Count(JudgedArm::kOracle, kind, layer, d, chosen, chosen);
      // The first token of a sequence has none before it.
      const auto before =
          at == 0 ? std::span<const uint16_t>() : trace_.Chosen(sequence, at - 1, layer + d);
      Count(JudgedArm::kPreviousToken, kind, layer, d, chosen, before);
    }
  }

  const std::shared_ptr<const HybridModel> model_;
  const FeatureTrace& trace_;
  const size_t step_;
  const size_t k_;
  std::vector<std::vector<uint16_t>> frequent_;  // by layer
};

template <typename Value>
double MeanOverLayers(const HybridJudgement& judgement, JudgedArm arm, StateKind kind,
                      int32_t distance, const Value& value) {
  double sum = 0;
  int32_t layers = 0;
  for (const auto& by_distance :
       judgement.score[static_cast<size_t>(arm)][static_cast<size_t>(kind)]) {
    const HybridScore& score = by_distance[static_cast<size_t>(distance - 1)];
    if (score.uses == 0) continue;
    sum += value(score);
    ++layers;
  }
  return layers == 0 ? 0 : sum / layers;
}

}  // namespace

std::string_view JudgedArmName(JudgedArm arm) {
  switch (arm) {
    case JudgedArm::kPreviousToken: return "previous token";
    case JudgedArm::kFrequency: return "frequency";
    case JudgedArm::kPreGate: return "pre-gate";
    case JudgedArm::kProbe: return "probe";
    case JudgedArm::kForest: return "forest";
    case JudgedArm::kForestProbe: return "forest + probe";
    case JudgedArm::kOracle: return "oracle";
  }
  return "";
}

void HybridScore::Add(const HybridScore& other) {
  uses += other.uses;
  hits += other.hits;
  hits_twice += other.hits_twice;
}

double HybridJudgement::MeanRecall(JudgedArm arm, StateKind kind, int32_t distance) const {
  return MeanOverLayers(*this, arm, kind, distance,
                        [](const HybridScore& score) { return score.recall(); });
}

double HybridJudgement::MeanCoverage(JudgedArm arm, StateKind kind, int32_t distance) const {
  return MeanOverLayers(*this, arm, kind, distance,
                        [](const HybridScore& score) { return score.coverage(); });
}

double HybridJudgement::CalibrationError(JudgedArm arm, StateKind kind,
                                         uint64_t predictions_min) const {
  double largest = 0;
  for (const ReliabilityBin& bin :
       reliability[static_cast<size_t>(arm)][static_cast<size_t>(kind)]) {
    if (bin.predictions < std::max<uint64_t>(predictions_min, 1)) continue;
    largest = std::max(largest, std::abs(bin.mean_probability() - bin.observed()));
  }
  return largest;
}

HybridJudgement JudgeHybrid(const std::shared_ptr<const HybridModel>& model,
                            const FeatureTrace& trace, const HybridJudgeOptions& options) {
  const size_t step = std::max<size_t>(
      1, (trace.tokens() + options.tokens_max - 1) / std::max<size_t>(options.tokens_max, 1));
  std::vector<Judge> parts;
  for (size_t p = 0; p < kParts; ++p) parts.emplace_back(model, trace, step);
  ParallelFor(options.threads, kParts, [&](size_t part) {
    // Another phase in each sequence: all positions are judged.
    for (size_t s = part; s < trace.sequences(); s += kParts) parts[part].Run(s, s % step);
  });
  HybridJudgement& total = parts[0].result;
  for (size_t p = 1; p < kParts; ++p) {
    const HybridJudgement& part = parts[p].result;
    total.tokens += part.tokens;
    for (size_t a = 0; a < kJudgedArms; ++a) {
      for (size_t k = 0; k < kStateKinds; ++k) {
        for (size_t l = 0; l < total.score[a][k].size(); ++l) {
          for (size_t d = 0; d < kPredictDistances; ++d) {
            total.score[a][k][l][d].Add(part.score[a][k][l][d]);
          }
        }
        for (size_t b = 0; b < kReliabilityBins; ++b) {
          ReliabilityBin& bin = total.reliability[a][k][b];
          bin.predictions += part.reliability[a][k][b].predictions;
          bin.used += part.reliability[a][k][b].used;
          bin.probability += part.reliability[a][k][b].probability;
        }
      }
    }
  }
  return std::move(total);
}

std::vector<double> TimeHybrid(const std::shared_ptr<const HybridModel>& model,
                               const FeatureTrace& trace, size_t batch, int32_t distances,
                               size_t tokens_max) {
  std::vector<double> nanoseconds;
  const auto hidden = static_cast<size_t>(model->hidden);
  const auto k = static_cast<size_t>(model->top_k);
  std::vector<float> residuals(batch * hidden);
  std::vector<float> weights(batch * k);
  std::vector<PredictorRow> rows(batch);
  size_t tokens = 0;
  for (size_t first = 0; first + batch <= trace.sequences(); first += batch) {
    LivePredictor live(model, batch, true);
    size_t length = SIZE_MAX;
    for (size_t b = 0; b < batch; ++b) length = std::min(length, trace.length(first + b));
    for (size_t at = 0; at < length; ++at) {
      if (tokens >= tokens_max) return nanoseconds;
      tokens += batch;
      for (int32_t layer = 0; layer < model->layers(); ++layer) {
        for (size_t b = 0; b < batch; ++b) {
          const std::span<float> residual = std::span(residuals).subspan(b * hidden, hidden);
          const std::span<float> weight = std::span(weights).subspan(b * k, k);
          trace.RouterState(first + b, at, layer, residual);
          trace.Weights(first + b, at, layer, weight);
          rows[b] = {.sequence = {first + b},
                     .token = trace.TokenId(first + b, at),
                     .residual = residual,
                     .chosen = trace.Chosen(first + b, at, layer),
                     .weights = weight};
        }
        const int64_t begin_ns = ThreadCpuNs();
        live.Observe(layer, rows);
        live.Predict(distances);
        nanoseconds.push_back(static_cast<double>(ThreadCpuNs() - begin_ns));
      }
    }
  }
  return nanoseconds;
}

}  // namespace expertflow
