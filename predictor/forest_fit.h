// Fits a regression forest (predictor/core/random_forest.h): each tree on a random part of the
// rows, each split the best of some random features over at most 255 thresholds a feature.
// Deterministic: a seed gives the same forest on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "predictor/core/random_forest.h"

namespace expertflow {

struct ForestRows {
  int32_t features = 0;
  std::vector<float> values;  // [rows, features]
  std::vector<float> target;  // [rows]
  size_t rows() const { return target.size(); }
};

struct ForestFitOptions {
  int32_t trees = 32;
  int32_t depth = 8;
  int32_t tried_features = 8;  // at each split
  size_t leaf_rows_min = 100;
  double rows_share = 0.6;  // of each tree
  uint64_t seed = 1;
  int32_t threads = 1;
};

// kInvalidArgument: no rows, sizes that do not agree, or values that are no numbers.
Result<RandomForest> FitForest(const ForestRows& rows, const ForestFitOptions& options);

}  // namespace expertflow
