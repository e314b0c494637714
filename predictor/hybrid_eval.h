// Judges the hybrid predictor on a recorded trace: recall, coverage and calibration of each arm, by
// source layer and distance. All arms see the same tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "predictor/core/hybrid_predictor.h"
#include "predictor/feature_trace.h"

namespace expertflow {

enum class JudgedArm : uint8_t {
  kPreviousToken,  // what the token before used
  kFrequency,      // what all tokens of the training used most
  kPreGate,
  kProbe,
  kForest,
  kForestProbe,
  kOracle,
};
inline constexpr size_t kJudgedArms = 7;
std::string_view JudgedArmName(JudgedArm arm);

inline constexpr size_t kReliabilityBins = 10;  // of equal width

struct HybridScore {
  uint64_t uses = 0;        // experts that were used: top_k a token
  uint64_t hits = 0;        // of those, among the top_k predicted
  uint64_t hits_twice = 0;  // among the 2 * top_k predicted
  double recall() const { return Share(hits); }
  double coverage() const { return Share(hits_twice); }
  void Add(const HybridScore& other);

 private:
  double Share(uint64_t n) const {
    return uses == 0 ? 0 : static_cast<double>(n) / static_cast<double>(uses);
  }
};

struct ReliabilityBin {
  uint64_t predictions = 0;
  uint64_t used = 0;
  double probability = 0;  // sum over the predictions
  double mean_probability() const {
    return predictions == 0 ? 0 : probability / static_cast<double>(predictions);
  }
  double observed() const {
    return predictions == 0 ? 0 : static_cast<double>(used) / static_cast<double>(predictions);
  }
};

struct HybridJudgement {
  int32_t layers = 0;
  size_t tokens = 0;  // that were judged
  // [arm][kind][source][distance - 1]
  std::vector<std::array<HybridScore, kPredictDistances>> score[kJudgedArms][kStateKinds];
  // Of arms with probabilities, all layers and distances.
  std::array<ReliabilityBin, kReliabilityBins> reliability[kJudgedArms][kStateKinds] = {};

  // Mean over the source layers that have the distance, each counting alike.
  double MeanRecall(JudgedArm arm, StateKind kind, int32_t distance) const;
  double MeanCoverage(JudgedArm arm, StateKind kind, int32_t distance) const;
  // The largest difference between predicted and observed of the bins with at least
  // `predictions_min`.
  double CalibrationError(JudgedArm arm, StateKind kind, uint64_t predictions_min) const;
};

struct HybridJudgeOptions {
  size_t tokens_max = 6000;  // judged, spread evenly; the state follows all
  int32_t threads = 1;
};

HybridJudgement JudgeHybrid(const std::shared_ptr<const HybridModel>& model,
                            const FeatureTrace& trace, const HybridJudgeOptions& options);

// What prediction costs: nanoseconds of CPU time of a layer, taking in the rows of `batch`
// sequences and predicting `distances` layers, by source layer in turn. One thread.
std::vector<double> TimeHybrid(const std::shared_ptr<const HybridModel>& model,
                               const FeatureTrace& trace, size_t batch, int32_t distances,
                               size_t tokens_max);

}  // namespace expertflow
