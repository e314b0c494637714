#include "predictor/core/random_forest.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace expertflow {
namespace {

// Rows that go down a tree together: each step of one waits for its loads, those of others need
// not.
constexpr size_t kRowsTogether = 8;

// Adds the leaves of a tree to sums[rows].
void AddLeaves(const RandomForest& forest, size_t tree, const float* block, float* sums) {
  const size_t nodes = forest.nodes();
  const uint8_t* feature = forest.feature.data() + tree * nodes;
  const float* threshold = forest.threshold.data() + tree * nodes;
  size_t at[kRowsTogether] = {};
  for (int32_t level = 0; level < forest.depth; ++level) {
    for (size_t r = 0; r < kRowsTogether; ++r) {
      const size_t node = at[r];
      const bool right = block[size_t{feature[node]} * kRowsTogether + r] > threshold[node];
      at[r] = 2 * node + 1 + (right ? 1u : 0u);
    }
  }
  const float* leaf = forest.leaf.data() + tree * forest.leaves();
  for (size_t r = 0; r < kRowsTogether; ++r) sums[r] += leaf[at[r] - nodes];
}

}  // namespace

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
                    std::span<float> out) {
  const auto features = static_cast<size_t>(forest.features);
  const float share = 1.0f / static_cast<float>(forest.trees);
  // [features, rows]: the rows of a feature lie together.
  std::array<float, kForestFeaturesMax* kRowsTogether> block = {};
  for (size_t first = 0; first < out.size(); first += kRowsTogether) {
    const size_t rows = std::min(kRowsTogether, out.size() - first);
    for (size_t r = 0; r < rows; ++r) {
      const float* row = values + (first + r) * stride;
      for (size_t f = 0; f < features; ++f) block[f * kRowsTogether + r] = row[f];
    }
    std::array<float, kRowsTogether> sums = {};
    for (size_t tree = 0; tree < static_cast<size_t>(forest.trees); ++tree) {
      AddLeaves(forest, tree, block.data(), sums.data());
    }
    for (size_t r = 0; r < rows; ++r) out[first + r] = sums[r] * share;
  }
}

void FindLeaves(const RandomForest& forest, const float* values, std::vector<uint16_t>* leaves) {
  const size_t nodes = forest.nodes();
  leaves->resize(static_cast<size_t>(forest.trees));
  for (size_t tree = 0; tree < leaves->size(); ++tree) {
    size_t node = 0;
    while (node < nodes) {
      const size_t at = tree * nodes + node;
      const bool right = values[forest.feature[at]] > forest.threshold[at];
      node = 2 * node + (right ? 2 : 1);
    }
    (*leaves)[tree] = static_cast<uint16_t>(node - nodes);
  }
}

}  // namespace expertflow
