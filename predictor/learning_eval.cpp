#include "predictor/learning_eval.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "predictor/core/learnt_merge.h"
#include "predictor/core/live_predictor.h"

namespace expertflow {
namespace {

// The `count` likeliest; ties to the lowest.
std::vector<uint16_t> Likeliest(std::span<const uint32_t> probability, size_t count) {
  std::vector<uint16_t> order(probability.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint16_t>(i);
  const size_t kept = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept), order.end(),
                    [&](uint16_t a, uint16_t b) {
                      return probability[a] != probability[b] ? probability[a] > probability[b]
                                                              : a < b;
                    });
  order.resize(kept);
  return order;
}

class JudgedWorker {
 public:
  JudgedWorker(const std::shared_ptr<const HybridModel>& model, const FeatureTrace& trace,
               bool learns)
      : model_(*model),
        trace_(trace),
        live_(model, 1, learns),
        predicted_(static_cast<size_t>(model->layers()) * kPredictDistances),
        residual_(static_cast<size_t>(model->hidden)),
        weights_(static_cast<size_t>(model->top_k)) {}

  LivePredictor& live() { return live_; }

  void Run(size_t sequence, std::array<HybridScore, kPredictDistances>* scores) {
    for (size_t at = 0; at < trace_.length(sequence); ++at) {
      for (int32_t layer = 0; layer < model_.layers(); ++layer) {
        const auto chosen = trace_.Chosen(sequence, at, layer);
        Score(layer, chosen, scores);
        trace_.RouterState(sequence, at, layer, residual_);
        trace_.Weights(sequence, at, layer, weights_);
        const PredictorRow row = {.sequence = {sequence},
                                  .token = trace_.TokenId(sequence, at),
                                  .residual = residual_,
                                  .chosen = chosen,
                                  .weights = weights_};
        live_.Observe(layer, {&row, 1});
        const int32_t count = live_.Predict(kPredictDistances);
        for (int32_t d = 1; d <= count; ++d) {
          PredictedOf(layer + d, d) = Likeliest(live_.ProbabilityPpm(d), weights_.size());
        }
      }
    }
  }

 private:
  std::vector<uint16_t>& PredictedOf(int32_t layer, int32_t distance) {
    return predicted_[static_cast<size_t>(layer) * kPredictDistances +
                      static_cast<size_t>(distance - 1)];
  }
  void Score(int32_t layer, std::span<const uint16_t> chosen,
             std::array<HybridScore, kPredictDistances>* scores) {
    for (int32_t d = 1; d <= std::min(layer, kPredictDistances); ++d) {
      const std::vector<uint16_t>& predicted = PredictedOf(layer, d);
      HybridScore& score = (*scores)[static_cast<size_t>(d - 1)];
      score.uses += chosen.size();
      for (const uint16_t expert : chosen) {
        const bool hit = std::find(predicted.begin(), predicted.end(), expert) != predicted.end();
        score.hits += hit ? 1 : 0;
      }
    }
  }

  const HybridModel& model_;
  const FeatureTrace& trace_;
  LivePredictor live_;
  std::vector<std::vector<uint16_t>> predicted_;  // [L, distances] of the present token
  std::vector<float> residual_;
  std::vector<float> weights_;
};

void Share(std::vector<std::unique_ptr<JudgedWorker>>& workers, LearntMerge* merge) {
  for (size_t w = 0; w < workers.size(); ++w) {
    const auto batch = workers[w]->live().TakeBatch(SIZE_MAX);
    if (batch != nullptr) merge->Add(WorkerId(static_cast<int32_t>(w)), *batch);
  }
  merge->Advance();
  for (size_t w = 0; w < workers.size(); ++w) {
    LivePredictor& live = workers[w]->live();
    live.Adopt(merge->ChangedSince(live.version()),
               merge->Included(WorkerId(static_cast<int32_t>(w))));
  }
}

}  // namespace

std::array<HybridScore, kPredictDistances> JudgeLearning(
    const std::shared_ptr<const HybridModel>& model, const FeatureTrace& trace,
    const LearningOptions& options) {
  std::array<HybridScore, kPredictDistances> scores = {};
  std::vector<std::unique_ptr<JudgedWorker>> workers;
  for (size_t w = 0; w < options.workers; ++w) {
    workers.push_back(std::make_unique<JudgedWorker>(model, trace, options.learns));
  }
  LearntMerge merge({});
  size_t tokens = 0;
  for (size_t s = 0; s < trace.sequences() && tokens < options.tokens_max; ++s) {
    tokens += trace.length(s);
    const size_t worker = s % options.workers;
    workers[worker]->Run(s, &scores);
    if (options.shares && worker + 1 == options.workers) Share(workers, &merge);
  }
  return scores;
}

}  // namespace expertflow
