#include "predictor/core/live_predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "predictor/core/any_of_ppm.h"

namespace expertflow {
namespace {

// Of a prompt's rows only the last ones are still felt: the slowest mean halves in 64 tokens.
constexpr size_t kPromptRows = 128;
constexpr size_t kTopKMost = 64;  // CheckHybridModel() allows no more

// The `count` largest, ties to the lowest number. Few of few: by insertion. REQUIRES: count <=
// kTopKMost
void Largest(std::span<const float> values, size_t count, std::vector<uint16_t>* out) {
  std::array<float, kTopKMost> largest;
  std::array<uint16_t, kTopKMost> number;
  size_t found = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    if (found == count && !(value > largest[found - 1])) continue;
    size_t at = found < count ? found++ : found - 1;
    for (; at > 0 && value > largest[at - 1]; --at) {
      largest[at] = largest[at - 1];
      number[at] = number[at - 1];
    }
    largest[at] = value;
    number[at] = static_cast<uint16_t>(i);
  }
  out->assign(number.begin(), number.begin() + static_cast<ptrdiff_t>(found));
}

uint64_t Hits(std::span<const uint16_t> predicted, std::span<const uint16_t> chosen) {
  return static_cast<uint64_t>(std::count_if(chosen.begin(), chosen.end(), [&](uint16_t expert) {
    return std::find(predicted.begin(), predicted.end(), expert) != predicted.end();
  }));
}

}  // namespace

LivePredictor::LivePredictor(const std::shared_ptr<const HybridModel>& model, size_t sequences_max,
                             bool learn)
    : learner_(learn ? std::make_unique<HybridLearner>(*model, HybridLearnerOptions{}) : nullptr),
      model_(learn ? learner_->model() : model),
      forests_(std::make_shared<const HybridForests>(*model)),
      sequences_(sequences_max) {
  CHECK(model_ != nullptr);
}

LivePredictor::Promise& LivePredictor::PromiseOf(Entry* entry, int32_t layer,
                                                 int32_t distance) const {
  return entry->promises[static_cast<size_t>(layer) * kPredictDistances +
                         static_cast<size_t>(distance - 1)];
}

void LivePredictor::Observe(int32_t layer, std::span<const PredictorRow> rows) {
  CHECK(layer >= 0 && layer < model_->layers());
  ++event_;
  sequences_.BeginEvent();
  layer_ = layer;
  active_.clear();
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    while (end < rows.size() && rows[end].sequence == rows[i].sequence) ++end;
    Entry& entry = sequences_.Use(rows[i].sequence, model_, forests_);
    // After a failed step, or taken up in the middle: on with the next token.
    if (layer == 0) entry.next = 0;
    if (entry.next == layer) {
      entry.next = (layer + 1) % model_->layers();
      if (rows[i].prefill) {
        ObservePrompt(layer, rows.subspan(i, end - i), &entry);
      } else {
        ObserveDecode(layer, rows[end - 1], &entry);
      }
    } else {
      entry.next = -1;
    }
    i = end;
  }
}

void LivePredictor::ObservePrompt(int32_t layer, std::span<const PredictorRow> rows, Entry* entry) {
  Prompt& prompt = entry->prompt;
  const size_t kept = std::min(rows.size(), kPromptRows);
  const std::span<const PredictorRow> last = rows.last(kept);
  const auto layers = static_cast<size_t>(model_->layers());
  const auto k = static_cast<size_t>(model_->top_k);
  if (layer == 0) {
    prompt.skipped = static_cast<int32_t>(rows.size() - kept);
    prompt.tokens.clear();
    for (const PredictorRow& row : last) prompt.tokens.push_back(row.token);
    for (std::vector<float>& residuals : prompt.residuals) residuals.clear();
    prompt.chosen.assign(kept * layers * k, UINT16_MAX);
  }
  if (prompt.tokens.size() != kept) return;  // other rows than in the first layer
  for (int32_t anchor = 0; anchor < kContextAnchors; ++anchor) {
    if (model_->AnchorLayer(anchor) != layer) continue;
    std::vector<float>& residuals = prompt.residuals[static_cast<size_t>(anchor)];
    residuals.clear();
    for (const PredictorRow& row : last) {
      residuals.insert(residuals.end(), row.residual.begin(), row.residual.end());
    }
  }
  for (size_t r = 0; r < kept; ++r) {
    const size_t count = std::min(k, last[r].chosen.size());
    std::copy_n(last[r].chosen.begin(), count,
                prompt.chosen.begin() +
                    static_cast<ptrdiff_t>((r * layers + static_cast<size_t>(layer)) * k));
  }
  if (layer + 1 < model_->layers()) return;
  const auto hidden = static_cast<size_t>(model_->hidden);
  entry->predictor.Skip(prompt.skipped);
  for (size_t r = 0; r < kept; ++r) {
    std::array<std::span<const float>, kContextAnchors> residuals;
    for (size_t anchor = 0; anchor < residuals.size(); ++anchor) {
      residuals[anchor] = std::span(prompt.residuals[anchor]).subspan(r * hidden, hidden);
    }
    entry->predictor.ObserveToken(prompt.tokens[r], residuals,
                                  std::span(prompt.chosen).subspan(r * layers * k, layers * k));
  }
  entry->prompt = {};
}

void LivePredictor::ObserveDecode(int32_t layer, const PredictorRow& row, Entry* entry) {
  if (layer == 0) {
    entry->predictor.BeginToken(row.token);
    for (Promise& promise : entry->promises) promise.made = false;
  }
  Settle(layer, row.chosen, entry);
  entry->predictor.ObserveRouter(layer, row.residual, row.chosen, row.weights);
  if (learner_ != nullptr && layer + 1 == model_->layers()) {
    learner_->LearnToken(row.token, entry->predictor);
  }
  active_.push_back(entry);
}

// What was predicted of this layer, against what came.
void LivePredictor::Settle(int32_t layer, std::span<const uint16_t> chosen, Entry* entry) {
  for (int32_t d = 1; d <= std::min(layer, kPredictDistances); ++d) {
    const Promise& promise = PromiseOf(entry, layer, d);
    if (!promise.made) continue;
    const RecallSums sums = {
        .settled = 1,
        .uses = chosen.size(),
        .hits = Hits(promise.predicted, chosen),
        .pre_gate_hits = Hits(promise.pre_gate, chosen),
        .expected = static_cast<uint64_t>(double{promise.expected} * kRecallUnit)};
    LiveRecall& recall = recall_[static_cast<size_t>(d - 1)];
    recall.Add(sums);
    if (version() == 0) recall.Choose();
    if (learner_ == nullptr) continue;
    learner_->LearnRecall(d, sums);
    if (promise.learnt < 0) continue;
    const bool used = std::find(chosen.begin(), chosen.end(), promise.learnt) != chosen.end();
    learner_->LearnLeaves(promise.leaves, (used ? 1.0f : 0.0f) - promise.base);
  }
}

void LivePredictor::Promised(Entry* entry, int32_t distance) {
  const auto k = static_cast<size_t>(model_->top_k);
  Promise& promise = PromiseOf(entry, layer_ + distance, distance);
  const std::span<const float> probability = entry->predictor.Probabilities(distance);
  Largest(probability, k, &promise.predicted);
  Largest(entry->predictor.PreGateMargins(distance), k, &promise.pre_gate);
  promise.expected = 0;
  for (const uint16_t expert : promise.predicted) promise.expected += probability[expert];
  promise.made = true;
  promise.learnt = -1;
  // One distance an event is enough, and costs little; another one in each pass over the layers.
  const auto layers = static_cast<uint64_t>(model_->layers());
  const uint64_t turn = event_ / layers + static_cast<uint64_t>(layer_ + distance);
  const bool learns = turn % kPredictDistances == 0;
  if (learner_ == nullptr || !learns) return;
  const auto candidates = entry->predictor.candidates();
  float least = 1;
  size_t least_sure = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].distance != distance) continue;
    const float p = probability[static_cast<size_t>(candidates[i].expert)];
    if (std::abs(p - 0.5f) >= least) continue;
    least = std::abs(p - 0.5f);
    promise.learnt = candidates[i].expert;
    promise.base = candidates[i].base;
    least_sure = i;
  }
  if (promise.learnt >= 0) entry->predictor.LeavesOf(least_sure, &promise.leaves);
}

// Adds what the sequence predicts at the distances where the pre-gate is used, or is not.
void LivePredictor::Join(const Entry& entry, int32_t distances, bool falls_back) {
  for (int32_t d = 1; d <= distances; ++d) {
    if (recall(d).falls_back != falls_back) continue;
    const std::span<const float> probability = entry.predictor.Probabilities(d);
    std::vector<uint32_t>& any = probability_ppm_[static_cast<size_t>(d - 1)];
    for (size_t e = 0; e < any.size(); ++e) {
      any[e] = AnyOfPpm(any[e], static_cast<uint32_t>(probability[e] * 1e6F));
    }
  }
}

int32_t LivePredictor::Predict(int32_t distances) {
  if (active_.empty()) return 0;
  const int32_t count = std::clamp(distances, 0, model_->DistancesFrom(layer_));
  for (int32_t d = 1; d <= count; ++d) {
    const auto experts =
        static_cast<size_t>(model_->experts[static_cast<size_t>(layer_) + static_cast<size_t>(d)]);
    probability_ppm_[static_cast<size_t>(d - 1)].assign(experts, 0);
  }
  const bool falls_back = std::any_of(recall_.begin(), recall_.begin() + count,
                                      [](const LiveRecall& r) { return r.falls_back; });
  if (count == 0) return 0;
  predictors_.clear();
  for (Entry* entry : active_) predictors_.push_back(&entry->predictor);
  HybridPredictor::EvaluateTogether(predictors_, PredictionArm::kForestProbe, count);
  // Watching each sequence would cost as much as half of the prediction.
  const uint64_t pass = event_ / static_cast<uint64_t>(model_->layers());
  Entry* const watched = active_[pass % active_.size()];
  for (int32_t d = 1; d <= count; ++d) Promised(watched, d);
  for (Entry* entry : active_) Join(*entry, count, false);
  if (!falls_back) return count;
  for (Entry* entry : active_) {
    entry->predictor.Reevaluate(PredictionArm::kPreGate);
    Join(*entry, count, true);
  }
  return count;
}

std::shared_ptr<const LearntBatch> LivePredictor::TakeBatch(size_t bytes_most) {
  return learner_ == nullptr ? nullptr : learner_->TakeBatch(bytes_most);
}

void LivePredictor::Adopt(const LearntVersion& version, uint64_t included) {
  if (learner_ == nullptr || version.version <= learner_->version()) return;
  learner_->Adopt(version, included);
  for (size_t d = 0; d < recall_.size(); ++d) {
    recall_[d].falls_back = (version.pre_gate_distances >> d & 1u) != 0;
  }
}

std::span<const uint32_t> LivePredictor::ProbabilityPpm(int32_t distance) const {
  return probability_ppm_[static_cast<size_t>(distance - 1)];
}

}  // namespace expertflow
