// The hybrid predictor: which experts the layers ahead will use for one token of one sequence, from
// what has been seen of both (docs/prediction.md).
//
// Three estimates, each an arm of its own. The pre-gate puts the present state through the target
// layer's router. The probe is a linear map, fitted for each pair of layers, from the state and the
// token's context: states of this token and of those before at three layers. The forest corrects
// one of the two by what is not linear: co-activation, the token id, the sequence's use of each
// expert, rank and margin, distance. Its correction is a probability added to the calibrated one.
//
// The model is immutable and may be shared; a predictor is the state of one sequence and belongs to
// one thread. For each token, in order: BeginToken(), then for each MoE layer ObserveRouter(), and
// ObserveExperts() where the state after the experts is to be predicted from; Evaluate() after any
// of them. The router of the last layer ends the token. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "predictor/core/byte_forest.h"
#include "predictor/core/hybrid_model.h"

namespace expertflow {

enum class PredictionArm : uint8_t {
  kPreGate,      // the fallback
  kProbe,        // without the forest
  kForest,       // pre-gate corrected by the forest
  kForestProbe,  // probe corrected by the forest: the best
};

// The state of a residual: divided by its root mean square; zeros when that is no number. Returns
// log2 of the root mean square. REQUIRES: out has room for as many
float StateOf(std::span<const float> residual, float* out);

// A model's forests in the form that is quick to evaluate, for all its predictors. The leaves stay
// with the model, where they may learn.
struct HybridForests {
  explicit HybridForests(const HybridModel& model);

  std::array<ByteForest, kStateKinds> forest;        // without the probe
  std::array<ByteForest, kStateKinds> forest_probe;  // with it
};

class HybridPredictor {
 public:
  // `forests`: of this model; without them, its own are walked. REQUIRES:
  // CheckHybridModel(*model).ok(); the forests may be absent for the arms without one
  explicit HybridPredictor(std::shared_ptr<const HybridModel> model,
                           std::shared_ptr<const HybridForests> forests = nullptr);

  const HybridModel& model() const { return *model_; }
  void Reset();  // a new sequence
  void BeginToken(int32_t token);
  // `layer` counts MoE layers. residual[hidden] before the router's norm; chosen[<= top_k] with
  // their weights. Experts out of range are left out.
  void ObserveRouter(int32_t layer, std::span<const float> residual,
                     std::span<const uint16_t> chosen, std::span<const float> weights);
  void ObserveExperts(int32_t layer, std::span<const float> residual);

  // A whole token that nothing is predicted from, as of a prompt: residuals [hidden] that the
  // routers of the anchors saw, and chosen[L, top_k]. Much cheaper than the above.
  void ObserveToken(int32_t token,
                    const std::array<std::span<const float>, kContextAnchors>& residuals,
                    std::span<const uint16_t> chosen);
  // Tokens that are left out; positions count on.
  void Skip(int32_t tokens) { position_ += tokens; }

  // Of the layers at distance 1 to `distances` from the one observed last, as many as there are.
  // Returns how many. REQUIRES: something was observed
  int32_t Evaluate(PredictionArm arm, int32_t distances);
  // The same for several sequences, whose products are made together. REQUIRES: of one model, with
  // the same state of the same layer observed last
  static int32_t EvaluateTogether(std::span<HybridPredictor* const> rows, PredictionArm arm,
                                  int32_t distances);
  // Another arm's probabilities, from the products of the latest Evaluate(), for as many distances.
  void Reevaluate(PredictionArm arm);
  // Of being used by this token, by expert of the layer; as of the latest Evaluate().
  std::span<const float> Probabilities(int32_t distance) const;

  // For fitting: what the arms are made of, as of the latest Evaluate().
  std::span<const float> PreGateMargins(int32_t distance) const;
  std::span<const float> ProbeMargins(int32_t distance) const;
  // The experts that the forest is asked about; FeatureOf() is what it sees of each.
  struct Candidate {
    int32_t distance = 0;
    int32_t expert = 0;
    float base = 0;  // the probability that the forest corrects
  };
  std::span<const Candidate> candidates() const { return candidates_; }
  float FeatureOf(size_t candidate, int32_t feature) const {
    return features_[candidate * kHybridFeatures + static_cast<size_t>(feature)];
  }
  // The leaves of the forest with the probe that a candidate comes to. REQUIRES: the latest
  // Evaluate() was of kForestProbe
  void LeavesOf(size_t candidate, std::vector<uint16_t>* leaves) const;
  // Of the present token, or of the one that has just ended.
  std::span<const uint16_t> ChosenOf(int32_t layer) const;
  // The state that the context is made from, [blocks * width], and the state with its context,
  // [hidden + rank].
  std::span<const float> context_blocks() const { return blocks_; }
  std::span<const float> input() const { return input_; }

 private:
  void TakeState(int32_t layer, StateKind kind, std::span<const float> residual);
  void TakeFirst(std::span<const float> state);
  void TakeOther(int32_t anchor, std::span<const float> state);
  void TakeChosen(int32_t layer, std::span<const uint16_t> chosen);
  void EndToken();
  void FollowContext();
  void Project(int32_t anchor, std::span<const float> state, float* out);
  void AddContext(int32_t block_begin, int32_t block_end, float* to);
  // The margins of up to kRowsTogether sequences.
  static void TakeMargins(std::span<HybridPredictor* const> rows, int32_t distances);
  static void EvaluateMargins(std::span<HybridPredictor* const> rows, PredictionArm arm);
  void EvaluateMargins(PredictionArm arm, int32_t distance);
  void AddCandidates(PredictionArm arm, int32_t distance);
  void KeepLargest(std::span<const float> margins);
  void SumLifts(size_t target);
  void FillFeatures(size_t first, bool probe);
  static void Correct(std::span<HybridPredictor* const> rows, PredictionArm arm);
  void AddCorrections(std::span<const float> corrections);
  size_t At(int32_t distance) const;  // of a target's experts in the arrays by target

  const std::shared_ptr<const HybridModel> model_;
  const std::shared_ptr<const HybridForests> forests_;  // null: the model's are walked
  std::vector<size_t> base_;                            // [L + 1]

  // Of the sequence, as of the tokens before.
  std::vector<float> blocks_;              // [blocks, width] the first block is of this token
  std::vector<float> context_before_;      // [rank] of all blocks but the first
  bool context_follows_ = true;            // context_before_ is of the present blocks
  std::array<std::vector<float>, 3> use_;  // [N] decayed
  std::array<float, 3> use_decay_ = {};
  std::vector<float> recent_;  // [hidden, recent tokens] first states
  int32_t position_ = -1;

  // Of the token.
  std::vector<float> others_;          // [anchors - 1, width] of the anchors but the first
  std::vector<uint16_t> chosen_;       // [L, K]
  std::vector<int32_t> chosen_count_;  // [L]
  int32_t token_ = -1;
  size_t token_row_ = SIZE_MAX;  // in the token prior, as of the latest Evaluate()
  float token_distance_ = 0;

  // Of the layer observed last.
  int32_t source_ = -1;
  StateKind kind_ = StateKind::kRouter;
  std::vector<float> input_;    // [hidden + rank]
  std::vector<int16_t> steps_;  // what is multiplied: scratch
  float norm_ = 0;
  float entropy_ = 0;

  // Of the latest Evaluate(), by target: experts of the layers after the source.
  int32_t distances_ = 0;  // as many as it was of
  std::vector<float> pre_gate_, probe_, probability_;
  std::vector<Candidate> candidates_;
  std::vector<float> features_;  // [candidates, features]
  // Scratch.
  std::vector<const float*> asked_;
  std::vector<float> correction_;
  std::vector<int32_t> order_;
  std::vector<float> of_order_;
  std::vector<const int8_t*> lifts_;  // [top_k]
  std::vector<float> near_, far_;     // [experts] sums of lifts
};

}  // namespace expertflow
