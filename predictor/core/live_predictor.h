// Prediction for all sequences that run: keeps a hybrid predictor for each, joins what they say
// into one probability an expert, and watches how well they do, of several sequences at one of them
// in each pass over the layers. Where the pre-gate alone has been better at a distance for a while,
// it is used there until that changes.
//
// A driver tells it of each (step, layer) event in order, as the expert cache's policy hears of it:
// Observe() with all rows of the layer, then Predict() for what the decode rows will need. One
// thread. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/ids.h"
#include "predictor/core/hybrid_learner.h"
#include "predictor/core/hybrid_predictor.h"
#include "predictor/core/live_recall.h"
#include "predictor/core/sequence_states.h"

namespace expertflow {

// One token at one layer. Spans are borrowed for the call.
struct PredictorRow {
  SequenceId sequence;
  int32_t token = -1;
  bool prefill = false;              // its own future is not predicted
  std::span<const float> residual;   // [hidden], before the router's norm
  std::span<const uint16_t> chosen;  // [top_k]
  std::span<const float> weights;    // [top_k]
};

class LivePredictor {
 public:
  // States of at most `sequences_max` sequences are kept, of those that were seen last. With
  // `learn` it learns from what comes, on a copy of the model. REQUIRES:
  // CheckHybridModel(*model).ok(), sequences_max > 0
  LivePredictor(const std::shared_ptr<const HybridModel>& model, size_t sequences_max, bool learn);

  // `layer` counts MoE layers. Rows of a sequence follow each other in order; every sequence meets
  // the layers in order. One that starts in the middle of a token is taken up at its next.
  void Observe(int32_t layer, std::span<const PredictorRow> rows);
  // From the decode rows of the latest Observe(). Returns how many distances there are, at most
  // `distances`; 0 without decode rows.
  int32_t Predict(int32_t distances);
  // By expert of the layer at `distance`, in millionths: of being used by at least one of the rows.
  std::span<const uint32_t> ProbabilityPpm(int32_t distance) const;

  // Between events, when it learns: see HybridLearner. Where the pre-gate is used follows what is
  // adopted, from the first version on. Without learning there is nothing.
  std::shared_ptr<const LearntBatch> TakeBatch(size_t bytes_most);
  void Adopt(const LearntVersion& version, uint64_t included);
  uint64_t version() const { return learner_ == nullptr ? 0 : learner_->version(); }

  // Of what was predicted here.
  const LiveRecall& recall(int32_t distance) const {
    return recall_[static_cast<size_t>(distance - 1)];
  }
  size_t sequences() const { return sequences_.size(); }

 private:
  // The likeliest experts of a layer, as predicted from one distance.
  struct Promise {
    bool made = false;
    float expected = 0;
    std::vector<uint16_t> predicted;  // [top_k]
    std::vector<uint16_t> pre_gate;   // [top_k]
    // The least sure of the candidates, to learn from.
    int32_t learnt = -1;  // its expert; -1: none
    float base = 0;       // what the forest corrects
    std::vector<uint16_t> leaves;
  };
  // A prompt that is on its way through the layers: the last rows of it.
  struct Prompt {
    int32_t skipped = 0;
    std::vector<int32_t> tokens;                                // [rows]
    std::array<std::vector<float>, kContextAnchors> residuals;  // [rows, hidden]
    std::vector<uint16_t> chosen;                               // [rows, L, top_k]
  };
  struct Entry {
    Entry(const std::shared_ptr<const HybridModel>& model,
          const std::shared_ptr<const HybridForests>& forests)
        : predictor(model, forests),
          promises(static_cast<size_t>(model->layers()) * kPredictDistances) {}
    HybridPredictor predictor;
    int32_t next = -1;  // layer of the token that is expected now; -1: wait for the first
    Prompt prompt;
    std::vector<Promise> promises;  // [L, distances]
  };

  void ObservePrompt(int32_t layer, std::span<const PredictorRow> rows, Entry* entry);
  void ObserveDecode(int32_t layer, const PredictorRow& row, Entry* entry);
  void Settle(int32_t layer, std::span<const uint16_t> chosen, Entry* entry);
  void Promised(Entry* entry, int32_t distance);
  void Join(const Entry& entry, int32_t distances, bool falls_back);
  Promise& PromiseOf(Entry* entry, int32_t layer, int32_t distance) const;

  std::unique_ptr<HybridLearner> learner_;  // null: nothing is learnt
  const std::shared_ptr<const HybridModel> model_;
  const std::shared_ptr<const HybridForests> forests_;
  SequenceStates<Entry> sequences_;
  uint64_t event_ = 0;
  int32_t layer_ = 0;
  std::vector<Entry*> active_;                // decode rows of the event
  std::vector<HybridPredictor*> predictors_;  // of them
  std::array<std::vector<uint32_t>, kPredictDistances> probability_ppm_;
  std::array<LiveRecall, kPredictDistances> recall_;
};

}  // namespace expertflow
