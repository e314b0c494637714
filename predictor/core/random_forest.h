// A random forest of complete binary trees of one depth: the form that is quick to evaluate, as a
// step down is an index and a comparison. Fitted by predictor/forest_fit.h. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"

namespace expertflow {

inline constexpr int32_t kForestTreesMax = 1024;
inline constexpr int32_t kForestDepthMax = 12;
inline constexpr int32_t kForestFeaturesMax = 64;

// Node i of a tree has the children 2i + 1 (value <= threshold) and 2i + 2. Leaves follow in order.
struct RandomForest {
  int32_t trees = 0;
  int32_t depth = 0;
  int32_t features = 0;
  std::vector<uint8_t> feature;  // [trees, nodes()]
  std::vector<float> threshold;  // [trees, nodes()]
  std::vector<float> leaf;       // [trees, leaves()]

  size_t nodes() const { return (size_t{1} << depth) - 1; }
  size_t leaves() const { return size_t{1} << depth; }
};
// Sizes agree and are within bounds, features are in range, numbers are finite (a threshold may be
// infinite: all rows go to one side).
Status CheckRandomForest(const RandomForest& forest);

// out[r] = mean over the trees. values[rows, stride]. REQUIRES: CheckRandomForest(forest).ok();
// stride >= forest.features
void EvaluateForest(const RandomForest& forest, const float* values, size_t stride,
                    std::span<float> out);

// The leaf of each tree that a row's `values` come to: [trees], counted within the tree.
void FindLeaves(const RandomForest& forest, const float* values, std::vector<uint16_t>* leaves);

}  // namespace expertflow
