#include "predictor/core/random_forest.h"

#include <algorithm>
#include <cmath>

namespace expertflow {

Status CheckRandomForest(const RandomForest& forest) {
  if (forest.trees < 1 || forest.trees > kForestTreesMax || forest.depth < 1 ||
      forest.depth > kForestDepthMax || forest.features < 1 ||
      forest.features > kForestFeaturesMax) {
    return InvalidArgument("forest: sizes out of range");
  }
  const auto trees = static_cast<size_t>(forest.trees);
  if (forest.feature.size() != trees * forest.nodes() ||
      forest.threshold.size() != trees * forest.nodes() ||
      forest.leaf.size() != trees * forest.leaves()) {
    return InvalidArgument("forest: the trees are not complete");
  }
  for (const uint8_t feature : forest.feature) {
    if (feature >= forest.features) return InvalidArgument("forest: a feature out of range");
  }
  for (const float threshold : forest.threshold) {
    if (std::isnan(threshold)) return InvalidArgument("forest: a threshold that is no number");
  }
  for (const float leaf : forest.leaf) {
    if (!std::isfinite(leaf)) return InvalidArgument("forest: a leaf that is no number");
  }
  return OkStatus();
}

void EvaluateForest(const RandomForest& forest, const float* values, size_t stride,
                    std::span<float> out, std::vector<uint32_t>* at) {
  const size_t rows = out.size();
  const size_t nodes = forest.nodes();
  std::fill(out.begin(), out.end(), 0.0f);
  at->resize(rows);
  for (size_t tree = 0; tree < static_cast<size_t>(forest.trees); ++tree) {
    const uint8_t* feature = forest.feature.data() + tree * nodes;
    const float* threshold = forest.threshold.data() + tree * nodes;
    std::fill(at->begin(), at->end(), 0u);
    // Level by level: the rows' loads are independent of each other, unlike a row's.
    for (int32_t level = 0; level < forest.depth; ++level) {
      for (size_t r = 0; r < rows; ++r) {
        const uint32_t node = (*at)[r];
        const bool right = values[feature[node] * stride + r] > threshold[node];
        (*at)[r] = 2 * node + 1 + (right ? 1u : 0u);
      }
    }
    const float* leaf = forest.leaf.data() + tree * forest.leaves();
    for (size_t r = 0; r < rows; ++r) out[r] += leaf[(*at)[r] - nodes];
  }
  const float share = 1.0f / static_cast<float>(forest.trees);
  for (float& value : out) value *= share;
}

void FindLeaves(const RandomForest& forest, const float* values, size_t stride, size_t column,
                std::vector<uint16_t>* leaves) {
  const size_t nodes = forest.nodes();
  leaves->resize(static_cast<size_t>(forest.trees));
  for (size_t tree = 0; tree < leaves->size(); ++tree) {
    size_t node = 0;
    while (node < nodes) {
      const size_t at = tree * nodes + node;
      const bool right = values[forest.feature[at] * stride + column] > forest.threshold[at];
      node = 2 * node + (right ? 2 : 1);
    }
    (*leaves)[tree] = static_cast<uint16_t>(node - nodes);
  }
}

}  // namespace expertflow
