#include "predictor/hybrid_fit.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "predictor/core/byte_matrix.h"
#include "predictor/core/hybrid_predictor.h"
#include "predictor/dense.h"
#include "predictor/forest_fit.h"
#include "predictor/hybrid_tables.h"
#include "predictor/parallel_for.h"
#include "predictor/ridge.h"

namespace expertflow {
namespace {

constexpr size_t kBlockRows = 128;
constexpr size_t kParts =
    8;  // of sums over sequences: fixed, so that they do not depend on threads
constexpr size_t kHeldOut = 5;               // every fifth sequence
constexpr double kRouterPenaltyRows = 0.05;  // the scores are a linear map of the state

class Fit {
 public:
  Fit(const FeatureTrace& trace, const HybridFitOptions& options,
      const std::function<void(const std::string&)>& progress)
      : trace_(trace), options_(options), progress_(progress), model_(new HybridModel()) {}

  Result<HybridModel> Run(HybridFitReport* report);

 private:
  void Say(const std::string& what) const {
    if (progress_) progress_(what);
  }
  void Split();
  // Every so many tokens of those held out are used.
  size_t HeldOutStep() const {
    return std::max<size_t>(1, held_out_tokens_ / options_.forest_tokens);
  }
  void FitAnchors();
  template <typename Visit>
  void WalkSamples(size_t s, const Visit& visit) const;
  Status FitContext();
  void TakeContexts();
  Status FitMaps();
  Status FitMapsOf(StateKind kind, int32_t layer);
  void Calibrate();
  Status FitForests(HybridFitReport* report);
  template <typename Take>
  void ForCandidates(StateKind kind, PredictionArm arm, size_t step, const Take& take) const;
  ForestRows GatherRows(StateKind kind, PredictionArm arm) const;

  // Feeds a token to the predictor up to `visit`, which is called after each state of `kind`.
  template <typename Visit>
  void Walk(HybridPredictor& predictor, size_t sequence, size_t at, StateKind kind,
            const Visit& visit) const;
  void State(StateKind kind, size_t sequence, size_t at, int32_t layer, float* out) const;
  // Calls run(part, sequence) for the sequences of a list, in parallel by part.
  template <typename Run>
  void ForParts(const std::vector<size_t>& sequences, const Run& run) const {
    ParallelFor(options_.threads, kParts, [&](size_t part) {
      for (size_t i = part; i < sequences.size(); i += kParts) run(part, sequences[i]);
    });
  }

  const FeatureTrace& trace_;
  const HybridFitOptions& options_;
  const std::function<void(const std::string&)>& progress_;
  std::shared_ptr<HybridModel> model_;

  std::vector<size_t> fitted_;    // sequences of maps and tables
  std::vector<size_t> held_out_;  // of calibration and forests
  size_t fitted_tokens_ = 0;
  size_t held_out_tokens_ = 0;
  struct Sample {
    size_t sequence = 0;
    size_t at = 0;
  };
  std::vector<Sample> samples_;       // tokens that maps are fitted to
  std::vector<size_t> sample_begin_;  // by sequence
  std::vector<float> context_;        // [samples, rank]
};

void Fit::State(StateKind kind, size_t sequence, size_t at, int32_t layer, float* out) const {
  std::vector<float> residual(static_cast<size_t>(model_->hidden));
  if (kind == StateKind::kRouter) {
    trace_.RouterState(sequence, at, layer, residual);
  } else {
    trace_.ExpertResidual(sequence, at, layer, residual);
  }
  StateOf(residual, out);
}

void Fit::Split() {
  for (size_t s = 0; s < trace_.sequences(); ++s) {
    const bool held = trace_.sequences() == 1 || s % kHeldOut == kHeldOut - 1 ||
                      (trace_.sequences() < kHeldOut && s + 1 == trace_.sequences());
    (held ? held_out_ : fitted_).push_back(s);
    (held ? held_out_tokens_ : fitted_tokens_) += trace_.length(s);
  }
  if (fitted_.empty()) {  // one sequence: nothing can be left out
    fitted_ = held_out_;
    fitted_tokens_ = held_out_tokens_;
  }
  const size_t step =
      std::max<size_t>(1, (fitted_tokens_ + options_.linear_rows - 1) / options_.linear_rows);
  sample_begin_.assign(trace_.sequences() + 1, 0);
  size_t token = 0;
  size_t next = 0;
  for (size_t s = 0; s < trace_.sequences(); ++s) {
    sample_begin_[s] = samples_.size();
    if (next == fitted_.size() || fitted_[next] != s) continue;
    ++next;
    for (size_t at = 0; at < trace_.length(s); ++at, ++token) {
      if (token % step == 0) samples_.push_back({s, at});
    }
  }
  sample_begin_.back() = samples_.size();
}

// The directions in which the states of a layer differ most, each to unit variance.
void Fit::FitAnchors() {
  const auto hidden = static_cast<size_t>(model_->hidden);
  const auto width = static_cast<size_t>(model_->width);
  ParallelFor(options_.threads, kContextAnchors, [&](size_t anchor) {
    const int32_t layer = model_->AnchorLayer(static_cast<int32_t>(anchor));
    RidgeSums sums(hidden, 0);
    std::vector<float> states(kBlockRows * hidden);
    size_t rows = 0;
    const size_t step = std::max<size_t>(1, samples_.size() / 30'000);
    for (size_t i = 0; i < samples_.size(); i += step) {
      State(StateKind::kRouter, samples_[i].sequence, samples_[i].at, layer,
            states.data() + rows * hidden);
      if (++rows < kBlockRows && i + step < samples_.size()) continue;
      sums.Add(states.data(), nullptr, rows);
      rows = 0;
    }
    const std::vector<float> covariance = sums.Covariance();
    const std::vector<float> directions =
        dense::LeadingRightVectors(covariance.data(), hidden, hidden, hidden, width);
    std::vector<float> weight(hidden * width);
    double largest = 0;
    for (size_t w = 0; w < width; ++w) {
      double variance = 0;
      for (size_t i = 0; i < hidden; ++i) {
        double sum = 0;
        for (size_t j = 0; j < hidden; ++j) {
          sum += double{covariance[i * hidden + j]} * directions[w * hidden + j];
        }
        variance += sum * directions[w * hidden + i];
      }
      largest = std::max(largest, variance);
      const double floor = 1e-4 * largest + 1e-12;
      for (size_t i = 0; i < hidden; ++i) {
        weight[i * width + w] =
            static_cast<float>(directions[w * hidden + i] / std::sqrt(std::max(variance, floor)));
      }
    }
    model_->anchor[anchor] = MakeByteMatrix(hidden, width, weight, std::vector<float>(width, 0.0f));
  });
}

// Calls visit(predictor, sample) for the samples of a sequence, where the context of the token is
// known. Only the layers that the context is made from are gone through.
template <typename Visit>
void Fit::WalkSamples(size_t s, const Visit& visit) const {
  HybridPredictor predictor(model_);
  std::vector<float> residual(static_cast<size_t>(model_->hidden));
  size_t sample = sample_begin_[s];
  for (size_t at = 0; at < trace_.length(s); ++at) {
    predictor.BeginToken(trace_.TokenId(s, at));
    for (int32_t anchor = 0; anchor < kContextAnchors; ++anchor) {
      const int32_t layer = model_->AnchorLayer(anchor);
      if (anchor > 0 && layer == model_->AnchorLayer(anchor - 1)) continue;
      trace_.RouterState(s, at, layer, residual);
      predictor.ObserveRouter(layer, residual, {}, {});
      if (layer > 0 || sample == sample_begin_[s + 1] || samples_[sample].at != at) continue;
      visit(predictor, sample++);
    }
  }
}

// From the blocks to all scores of the token, and of that map the leading directions.
Status Fit::FitContext() {
  const auto inputs = static_cast<size_t>(kContextBlocks) * static_cast<size_t>(model_->width);
  const auto rank = static_cast<size_t>(model_->rank);
  const size_t total = model_->experts_total();
  model_->context = MakeByteMatrix(inputs, rank, std::vector<float>(inputs * rank, 0.0f),
                                   std::vector<float>(rank, 0.0f));
  const int32_t layers = model_->layers();
  std::vector<RidgeSums> parts(kParts, RidgeSums(inputs, total));
  ForParts(fitted_, [&](size_t part, size_t s) {
    std::vector<float> x(kBlockRows * inputs);
    std::vector<float> y(kBlockRows * total);
    size_t rows = 0;
    WalkSamples(s, [&](const HybridPredictor& predictor, size_t sample) {
      const auto blocks = predictor.context_blocks();
      std::copy(blocks.begin(), blocks.end(), x.begin() + static_cast<ptrdiff_t>(rows * inputs));
      for (int32_t l = 0; l < layers; ++l) {
        trace_.Scores(
            s, samples_[sample].at, l,
            std::span(y).subspan(rows * total + model_->BaseOf(l),
                                 static_cast<size_t>(model_->experts[static_cast<size_t>(l)])));
      }
      if (++rows < kBlockRows && sample + 1 < sample_begin_[s + 1]) return;
      parts[part].Add(x.data(), y.data(), rows);
      rows = 0;
    });
  });
  RidgeSums& sums = parts[0];
  for (size_t p = 1; p < kParts; ++p) sums.Add(parts[p]);
  ASSIGN_OR_RETURN(const RidgeSums::Map map, sums.Solve(options_.context_penalty_rows));
  // Covariance of the fitted scores: W^T C W.
  const std::vector<float> covariance = sums.Covariance();
  std::vector<float> cw(inputs * total);
  dense::AddProduct(1, covariance.data(), inputs, map.weight.data(), total, inputs, total, inputs,
                    cw.data(), total);
  std::vector<float> turned(total * inputs);
  for (size_t i = 0; i < inputs; ++i) {
    for (size_t o = 0; o < total; ++o) turned[o * inputs + i] = map.weight[i * total + o];
  }
  std::vector<float> fitted(total * total);
  dense::AddProduct(1, turned.data(), inputs, cw.data(), total, total, total, inputs, fitted.data(),
                    total);
  const std::vector<float> directions =
      dense::LeadingRightVectors(fitted.data(), total, total, total, rank);
  std::vector<float> weight(inputs * rank);
  for (size_t r = 0; r < rank; ++r) {
    const float* direction = directions.data() + r * total;
    double variance = 0;
    for (size_t o = 0; o < total; ++o) {
      double sum = 0;
      for (size_t p = 0; p < total; ++p) sum += double{fitted[o * total + p]} * direction[p];
      variance += sum * direction[o];
    }
    const double scale = variance > 1e-9 ? 1 / std::sqrt(variance) : 0;
    for (size_t i = 0; i < inputs; ++i) {
      double sum = 0;
      for (size_t o = 0; o < total; ++o) sum += double{map.weight[i * total + o]} * direction[o];
      weight[i * rank + r] = static_cast<float>(sum * scale);
    }
  }
  model_->context = MakeByteMatrix(inputs, rank, weight, std::vector<float>(rank, 0.0f));
  return OkStatus();
}

void Fit::TakeContexts() {
  const auto rank = static_cast<size_t>(model_->rank);
  const auto hidden = static_cast<size_t>(model_->hidden);
  context_.resize(samples_.size() * rank);
  ForParts(fitted_, [&](size_t, size_t s) {
    WalkSamples(s, [&](const HybridPredictor& predictor, size_t sample) {
      std::copy_n(predictor.input().data() + hidden, rank, context_.data() + sample * rank);
    });
  });
}

Status Fit::FitMapsOf(StateKind kind, int32_t layer) {
  const auto hidden = static_cast<size_t>(model_->hidden);
  const auto rank = static_cast<size_t>(model_->rank);
  const size_t inputs = hidden + rank;
  const int32_t distances = model_->DistancesFrom(layer);
  const size_t first = model_->BaseOf(layer + 1);
  const size_t outputs = model_->BaseOf(layer + 1 + distances) - first;
  const auto own = static_cast<size_t>(model_->experts[static_cast<size_t>(layer)]);
  RidgeSums probe(inputs, outputs);
  RidgeSums router(hidden, own);
  std::vector<float> x(kBlockRows * inputs);
  std::vector<float> states(kBlockRows * hidden);
  std::vector<float> y(kBlockRows * outputs);
  std::vector<float> scores(kBlockRows * own);
  size_t rows = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const Sample& sample = samples_[i];
    float* state = x.data() + rows * inputs;
    State(kind, sample.sequence, sample.at, layer, state);
    std::copy_n(state, hidden, states.data() + rows * hidden);
    std::copy_n(context_.data() + i * rank, rank, state + hidden);
    for (int32_t d = 1; d <= distances; ++d) {
      const auto experts =
          static_cast<size_t>(model_->experts[static_cast<size_t>(layer) + static_cast<size_t>(d)]);
      trace_.Scores(
          sample.sequence, sample.at, layer + d,
          std::span(y).subspan(rows * outputs + model_->BaseOf(layer + d) - first, experts));
    }
    trace_.Scores(sample.sequence, sample.at, layer, std::span(scores).subspan(rows * own, own));
    if (++rows < kBlockRows && i + 1 < samples_.size()) continue;
    if (distances > 0) probe.Add(x.data(), y.data(), rows);
    if (kind == StateKind::kRouter) router.Add(states.data(), scores.data(), rows);
    rows = 0;
  }
  const auto l = static_cast<size_t>(layer);
  if (kind == StateKind::kRouter) {
    ASSIGN_OR_RETURN(RidgeSums::Map map, router.Solve(kRouterPenaltyRows));
    model_->pre_gate[l] = MakeByteMatrix(hidden, own, map.weight, std::move(map.bias));
  }
  if (distances > 0) {
    ASSIGN_OR_RETURN(RidgeSums::Map map, probe.Solve(options_.penalty_rows));
    model_->probe[static_cast<size_t>(kind)][l] =
        MakeByteMatrix(inputs, outputs, map.weight, std::move(map.bias));
  }
  return OkStatus();
}

Status Fit::FitMaps() {
  const auto layers = static_cast<size_t>(model_->layers());
  model_->pre_gate.resize(layers);
  for (auto& probes : model_->probe) probes.resize(layers - 1);
  std::vector<Status> found(kStateKinds * layers);
  // The first layers have the most targets: they go first.
  ParallelFor(options_.threads, found.size(), [&](size_t i) {
    const auto kind = static_cast<StateKind>(i % kStateKinds);
    const size_t layer = i / kStateKinds;
    if (layer + 1 == layers && kind == StateKind::kExperts) return;  // nothing lies ahead
    found[i] = FitMapsOf(kind, static_cast<int32_t>(layer));
  });
  for (const Status& status : found) RETURN_IF_ERROR(status);
  return OkStatus();
}

template <typename Visit>
void Fit::Walk(HybridPredictor& predictor, size_t sequence, size_t at, StateKind kind,
               const Visit& visit) const {
  std::vector<float> residual(static_cast<size_t>(model_->hidden));
  std::vector<float> weights(static_cast<size_t>(model_->top_k));
  predictor.BeginToken(trace_.TokenId(sequence, at));
  for (int32_t layer = 0; layer < model_->layers(); ++layer) {
    trace_.RouterState(sequence, at, layer, residual);
    trace_.Weights(sequence, at, layer, weights);
    predictor.ObserveRouter(layer, residual, trace_.Chosen(sequence, at, layer), weights);
    if (kind == StateKind::kExperts && layer + 1 < model_->layers()) {
      trace_.ExpertResidual(sequence, at, layer, residual);
      predictor.ObserveExperts(layer, residual);
    }
    if (layer + 1 < model_->layers()) visit(layer);
  }
}

void Fit::Calibrate() {
  struct Part {
    MarginHistogram pre_gate[kStateKinds][kPredictDistances];
    MarginHistogram probe[kStateKinds][kPredictDistances];
  };
  std::vector<Part> parts(kParts);
  const size_t step = HeldOutStep();
  ForParts(held_out_, [&](size_t part, size_t s) {
    for (const StateKind kind : {StateKind::kRouter, StateKind::kExperts}) {
      const auto k = static_cast<size_t>(kind);
      HybridPredictor predictor(model_);
      for (size_t at = 0; at < trace_.length(s); ++at) {
        Walk(predictor, s, at, kind, [&](int32_t layer) {
          if (at % step != 0) return;
          const int32_t count = predictor.Evaluate(PredictionArm::kProbe, kPredictDistances);
          for (int32_t d = 1; d <= count; ++d) {
            const auto chosen = trace_.Chosen(s, at, layer + d);
            const auto add = [&](std::span<const float> margins, MarginHistogram& to) {
              for (size_t e = 0; e < margins.size(); ++e) {
                const bool used = std::find(chosen.begin(), chosen.end(), e) != chosen.end();
                to.Add(margins[e], used);
              }
            };
            const auto at_distance = static_cast<size_t>(d - 1);
            add(predictor.PreGateMargins(d), parts[part].pre_gate[k][at_distance]);
            add(predictor.ProbeMargins(d), parts[part].probe[k][at_distance]);
          }
        });
      }
    }
  });
  for (size_t k = 0; k < kStateKinds; ++k) {
    for (size_t d = 0; d < kPredictDistances; ++d) {
      for (size_t p = 1; p < kParts; ++p) {
        parts[0].pre_gate[k][d].Add(parts[p].pre_gate[k][d]);
        parts[0].probe[k][d].Add(parts[p].probe[k][d]);
      }
      model_->pre_gate_fit[k][d] = parts[0].pre_gate[k][d].FitLogistic();
      model_->probe_fit[k][d] = parts[0].probe[k][d].FitLogistic();
    }
  }
}

// Calls take(part, predictor, candidate, weight, used) for what the forest of an arm is to correct,
// in every `step`th token held out. The weight evens out how often experts are used.
template <typename Take>
void Fit::ForCandidates(StateKind kind, PredictionArm arm, size_t step, const Take& take) const {
  double mean_base = 0;
  for (const float base : model_->base) mean_base += base;
  mean_base /= static_cast<double>(model_->base.size());
  ForParts(held_out_, [&](size_t part, size_t s) {
    HybridPredictor predictor(model_);
    for (size_t at = 0; at < trace_.length(s); ++at) {
      Walk(predictor, s, at, kind, [&](int32_t layer) {
        // Another phase in each sequence: all positions count.
        if ((at + s) % step != 0) return;
        predictor.Evaluate(arm, kPredictDistances);
        for (size_t i = 0; i < predictor.candidates().size(); ++i) {
          const HybridPredictor::Candidate& candidate = predictor.candidates()[i];
          const int32_t target = layer + candidate.distance;
          const auto chosen = trace_.Chosen(s, at, target);
          const bool used =
              std::find(chosen.begin(), chosen.end(), candidate.expert) != chosen.end();
          const size_t through = model_->BaseOf(target) + static_cast<size_t>(candidate.expert);
          const double base = std::max<double>(model_->base[through], 1e-6);
          take(part, predictor, i, std::clamp(mean_base / base, 0.4, 2.5), used);
        }
      });
    }
  });
}

// Samples of all sources and distances, the experts as equally as their use allows.
ForestRows Fit::GatherRows(StateKind kind, PredictionArm arm) const {
  constexpr size_t kCountStep = 16;
  const bool probe = arm == PredictionArm::kForestProbe;
  const int32_t features = probe ? static_cast<int32_t>(kHybridFeatures) : kForestOnlyFeatures;
  const size_t step = HeldOutStep();
  std::vector<double> weights(kParts, 0.0);
  ForCandidates(kind, arm, kCountStep * step,
                [&](size_t part, const HybridPredictor&, size_t, double weight, bool) {
                  weights[part] += weight;
                });
  const double weight_total = kCountStep * std::accumulate(weights.begin(), weights.end(), 0.0);
  const double share = static_cast<double>(options_.forest_rows) / std::max(weight_total, 1.0);

  std::vector<ForestRows> parts(kParts);
  std::vector<uint64_t> state(kParts);
  for (size_t p = 0; p < kParts; ++p) state[p] = options_.seed * 7919 + p;
  ForCandidates(
      kind, arm, step,
      [&](size_t part, const HybridPredictor& predictor, size_t candidate, double weight,
          bool used) {
        uint64_t& random = state[part];
        random = random * 6364136223846793005u + 1442695040888963407u;
        if (static_cast<double>(random >> 11) * 0x1p-53 >= share * weight) return;
        ForestRows& rows = parts[part];
        for (int32_t f = 0; f < features; ++f) {
          rows.values.push_back(predictor.FeatureOf(candidate, f));
        }
        rows.target.push_back((used ? 1.0f : 0.0f) - predictor.candidates()[candidate].base);
      });
  ForestRows rows;
  rows.features = features;
  for (ForestRows& part : parts) {
    rows.values.insert(rows.values.end(), part.values.begin(), part.values.end());
    rows.target.insert(rows.target.end(), part.target.begin(), part.target.end());
    part = {};
  }
  return rows;
}

Status Fit::FitForests(HybridFitReport* report) {
  ForestFitOptions forest;
  forest.trees = options_.trees;
  forest.depth = options_.depth;
  forest.seed = options_.seed;
  forest.threads = options_.threads;
  // The features of a kind are gathered while neither forest of it is there: base probabilities.
  for (const StateKind kind : {StateKind::kRouter, StateKind::kExperts}) {
    for (const PredictionArm arm : {PredictionArm::kForest, PredictionArm::kForestProbe}) {
      const bool probe = arm == PredictionArm::kForestProbe;
      const ForestRows rows = GatherRows(kind, arm);
      report->forest_samples += rows.rows();
      ASSIGN_OR_RETURN(RandomForest fitted, FitForest(rows, forest));
      (probe ? model_->forest_probe : model_->forest)[static_cast<size_t>(kind)] =
          std::move(fitted);
    }
  }
  return OkStatus();
}

Result<HybridModel> Fit::Run(HybridFitReport* report) {
  const TraceShape& shape = trace_.shape();
  if (trace_.tokens() < kHybridFitTokensMin) {
    return InvalidArgument("the trace has " + std::to_string(trace_.tokens()) +
                           " tokens; a predictor is fitted to " +
                           std::to_string(kHybridFitTokensMin) + " or more");
  }
  if (shape.layers() < 2) return InvalidArgument("the model has one MoE layer: nothing lies ahead");
  model_->experts = shape.experts;
  model_->top_k = shape.top_k;
  model_->hidden = shape.hidden;
  model_->width = std::min(options_.width, shape.hidden);
  model_->rank = std::min<int32_t>(options_.rank, shape.experts_total());
  Split();
  Say("tables");
  FitTables(trace_, fitted_,
            {.tokens_max = options_.tokens_max, .token_count_min = options_.token_count_min},
            model_.get());
  Say("context");
  FitAnchors();
  RETURN_IF_ERROR(FitContext());
  TakeContexts();
  Say("linear maps");
  RETURN_IF_ERROR(FitMaps());
  Say("calibration");
  Calibrate();
  Say("forests");
  RETURN_IF_ERROR(FitForests(report));
  report->linear_tokens = samples_.size();
  report->forest_tokens = held_out_tokens_ / HeldOutStep();
  RETURN_IF_ERROR(CheckHybridModel(*model_));
  return std::move(*model_);
}

}  // namespace

Result<HybridModel> FitHybrid(const FeatureTrace& trace, const HybridFitOptions& options,
                              HybridFitReport* report,
                              const std::function<void(const std::string&)>& progress) {
  return Fit(trace, options, progress).Run(report);
}

}  // namespace expertflow
