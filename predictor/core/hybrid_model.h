// What `expertflow train` fits and the hybrid predictor evaluates (hybrid_predictor.h): plain data.
//
// N experts in all, numbered through; L MoE layers; H the hidden size. A state is the residual
// stream of a token at a layer, divided by its root mean square. There are two kinds of it: what
// the layer's router sees, and what leaves the layer's experts, half a layer later.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "predictor/core/random_forest.h"

namespace expertflow {

inline constexpr int32_t kPredictDistances = 8;  // layers ahead, from 1
inline constexpr int32_t kStateKinds = 2;
enum class StateKind : uint8_t { kRouter = 0, kExperts = 1 };

// The context of a token: states of five layers, spread evenly from the first to the last, all as
// their routers saw them, projected to `width` numbers each, of this token and of those before.
inline constexpr int32_t kContextAnchors = 5;
enum ContextBlock : int32_t {
  kFirstNow,
  kFirstBefore1,   // of the token before
  kFirstBefore2,   // and the one before that
  kFirstDecay8,    // decayed mean of those before, half-life 8
  kOthersBefore1,  // of the other anchors, one block each
  kOthersDecay8 = kOthersBefore1 + kContextAnchors - 1,  // likewise
  kLastDecay64 = kOthersDecay8 + kContextAnchors - 1,
  kContextBlocks
};

// A token id's prior counts the base rates as so many uses.
inline constexpr float kTokenPriorStrength = 4;
// A share as it is kept.
inline uint8_t TokenPriorOf(float share) {
  const auto half_steps = static_cast<int32_t>(510 * std::clamp(share, 0.0f, 1.0f));
  return static_cast<uint8_t>((half_steps + 1) / 2);
}

// Layers whose choices count as co-activation: the source and the four before it.
inline constexpr int32_t kCoactivationLayers = 5;
inline constexpr int32_t kCoactivationLags = kPredictDistances + kCoactivationLayers - 1;

// What the forest sees of an expert of a target layer. Those from kProbeMargin on are for the
// forest that has the probe.
enum HybridFeature : int32_t {
  kPreGateMargin,       // over the edge between chosen and not chosen, in standard deviations
  kPreGateRank,         // 0: the highest
  kPreGateProbability,  // of the margin alone
  kCoactivationNear,    // with the choices of the source layer: mean log of the lift
  kCoactivationFar,     // with those of the four layers before
  kTokenPrior,          // share of this token id's uses
  kTokenCount,          // log2(1 + how often that id was seen)
  kPosition,            // log2(1 + position)
  kTokenDistance,       // of the token's first state to the nearest of the last eight
  kUse1,                // decayed use by the sequence, half-life 1
  kUse8,
  kUse64,
  kEntropy,  // of the source's router, from the weights of the chosen
  kNorm,     // log2 of the root mean square of the residual
  kBase,     // how often the expert is used by all
  kDistance,
  kSource,
  kProbeMargin,
  kProbeRank,
  kProbeProbability,
  kHybridFeatures
};
inline constexpr int32_t kForestOnlyFeatures = kProbeMargin;
inline constexpr float kUseHalfLives[3] = {1, 8, 64};
inline constexpr int32_t kRecentTokens = 8;

// out[o] = bias[o] + scale[o] * sum over i of in[i] * weight[o, i]
struct ByteMatrix {
  int32_t inputs = 0;
  int32_t outputs = 0;
  std::vector<int8_t> weight;  // [outputs, inputs]
  std::vector<float> scale;    // [outputs]
  std::vector<float> bias;     // [outputs]
};

// A probability from a margin: 1 / (1 + exp(-(slope * margin + offset))).
struct Logistic {
  float slope = 1;
  float offset = 0;
};

struct HybridModel {
  std::vector<int32_t> experts;  // [L]
  int32_t top_k = 0;
  int32_t hidden = 0;
  int32_t width = 0;  // of a context block
  int32_t rank = 0;   // of the context

  std::array<ByteMatrix, kContextAnchors> anchor;  // [H] to [width]
  ByteMatrix context;                              // [blocks * width] to [rank]
  // [L] the router of the layer on any state: [H] to [experts]
  std::vector<ByteMatrix> pre_gate;
  // [kinds][L - 1] from [H + rank] to the experts of the layers at distance 1, 2, ...
  std::array<std::vector<ByteMatrix>, kStateKinds> probe;
  std::array<std::array<Logistic, kPredictDistances>, kStateKinds> pre_gate_fit;
  std::array<std::array<Logistic, kPredictDistances>, kStateKinds> probe_fit;

  // [L][lags] log of P(e used | f used `lag` layers before) / P(e used), times 32: [f, e]. Lags
  // that reach before the first layer are empty.
  std::vector<std::array<std::vector<int8_t>, kCoactivationLags>> coactivation;
  std::vector<float> base;            // [N] share of tokens that use it
  std::vector<int32_t> tokens;        // ids with a prior, ascending
  std::vector<uint32_t> token_row;    // of each id, its row in what follows
  std::vector<uint32_t> token_count;  // [rows] how often it was seen
  std::vector<uint8_t> token_prior;   // [rows, N] in 1/255

  std::array<RandomForest, kStateKinds> forest;        // without the probe
  std::array<RandomForest, kStateKinds> forest_probe;  // with it

  int32_t layers() const { return static_cast<int32_t>(experts.size()); }
  size_t experts_total() const;
  // Distances that a source layer has targets for.
  int32_t DistancesFrom(int32_t source) const;
  // Whose states make the context, ascending; of few layers one may come twice.
  int32_t AnchorLayer(int32_t anchor) const;
  // First expert of a layer, numbered through.
  size_t BaseOf(int32_t layer) const;
  // Of the id in the token prior; SIZE_MAX: it has none.
  size_t TokenRowOf(int32_t token) const;
};

// Sizes agree with each other and are within bounds, numbers are finite.
Status CheckHybridModel(const HybridModel& model);

}  // namespace expertflow
