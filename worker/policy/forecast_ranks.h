// The next-use forecast of all running sequences, as ranks for the expert cache: keeps a forecaster
// for each sequence, tells it what the routers chose, and joins them into one expected distance an
// expert. A pure policy, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/ids.h"
#include "predictor/core/next_use_forecaster.h"
#include "predictor/core/sequence_states.h"

namespace expertflow {

// What the router of one layer chose for one token.
struct RoutedRow {
  SequenceId sequence;
  bool prefill = false;
  RoutedToken routed;
};

// Of the corrections by what was decoded; one for all batches and cache sizes (docs/replay.md).
inline constexpr float kForecastLearningRate = 3e-4f;

class ForecastRanks {
 public:
  // `slots`: of the cache that is ranked. States of at most `sequences_max` sequences are kept, of
  // those that were seen last. REQUIRES: CheckNextUseModel(*model).ok(), sequences_max > 0
  // What was decoded corrects the forecasts of all sequences, those to come included
  // (NextUseCorrections), at this rate or less where sequences are many; at 0 it does not.
  ForecastRanks(std::shared_ptr<const NextUseModel> model, int32_t slots, size_t sequences_max,
                float learning_rate = kForecastLearningRate);

  // One event: `layer` counts MoE layers, `distinct` is how many experts the decode rows use. Rows
  // of a sequence follow each other in order; every sequence meets the layers in order. Rows of a
  // prompt move the state of their sequence, but are not part of the distances.
  void Observe(int32_t layer, std::span<const RoutedRow> rows, int32_t distinct);

  // [N] in 1/1024 steps, for ExpertCache::UseForecast(), as of the latest Observe(); empty when it
  // had no decode row. Valid until the next call.
  std::span<const uint32_t> Distances();

  // Of the cache from now on.
  void SetSlots(int32_t slots) { slots_ = slots; }

  size_t sequences() const { return sequences_.size(); }

 private:
  void FollowDemand(int32_t layer, int32_t distinct);
  void FollowHorizon(int32_t layer, int32_t distinct);

  const std::shared_ptr<const NextUseModel> model_;
  double slots_;
  std::optional<NextUseMap> map_;
  double map_ratio_ = 1;
  double demand_ = 0;  // distinct experts of a pass over the layers, smoothed
  double pass_demand_ = 0;
  int32_t layer_ = 0;
  NextUseCorrections corrections_;
  SequenceStates<NextUseForecaster> sequences_;
  std::vector<const NextUseForecaster*> active_;  // with decode rows in the latest event
  std::vector<RoutedToken> prompt_;
  std::vector<uint32_t> distance_;
};

}  // namespace expertflow
