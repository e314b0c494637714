// A random forest (random_forest.h) in a form that 32 or 64 rows go down together. A threshold
// becomes its place among the thresholds of its feature, a value the number of those below it: a
// byte each, and comparisons of bytes come out as those of the numbers. So results are the plain
// form's, to the bit, on every machine. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "predictor/core/random_forest.h"

namespace expertflow {

class ByteForest {
 public:
  // Keeps all of `forest` but its leaves, which may change. One without trees is allowed.
  // `avx512`: whether to use it where the processor has it.
  // REQUIRES: forest.trees == 0 or CheckRandomForest(forest).ok()
  explicit ByteForest(const RandomForest& forest, bool avx512 = true);

  // out[r] = mean over the trees. `leaf`: the forest's leaves, [trees, leaves]. rows[r]: its
  // features. REQUIRES: fits(); as many rows as out
  void Evaluate(std::span<const float> leaf, std::span<const float* const> rows,
                std::span<float> out) const;
  // Whether bytes can tell its thresholds and leaves, and the processor has AVX2. If not, the plain
  // form has to do.
  bool fits() const { return fits_; }

 private:
  // The nodes of a level by the path to them: what they ask for.
  struct Level {
    size_t nodes = 0;          // where its rows of 16 begin in node_feature_ and node_place_
    size_t features = 0;       // where those that it asks for begin in asked_
    size_t feature_count = 0;  // distinct ones
  };

  void AddTree(const RandomForest& forest, size_t tree);
  uint8_t PlaceOf(size_t feature, float threshold) const;
  void TakePlaces(std::span<const float* const> rows, uint8_t* block) const;
  // Half of a block.
  void GoDown(const uint8_t* block, uint8_t* leaves) const;
  // The same with AVX-512, for whole blocks.
  void TakePlacesWide(std::span<const float* const> rows, uint8_t* block) const;
  void GoDownWide(const uint8_t* block, uint8_t* leaves) const;

  bool fits_ = false;
  bool wide_ = false;  // the processor has AVX-512 with look-ups of bytes
  size_t trees_ = 0;
  size_t depth_ = 0;
  size_t features_ = 0;
  std::vector<float> thresholds_;      // [features, 256] ascending, then infinite
  std::vector<float> guides_;          // [features, 16] every 16th of them
  std::vector<uint8_t> top_;           // [trees, 15, 2] feature and place of the first four levels
  std::vector<Level> levels_;          // [trees, depth]
  std::vector<uint8_t> node_feature_;  // by level, at least 16 each
  std::vector<uint8_t> node_place_;    // likewise
  std::vector<uint16_t> asked_;        // by level: where a feature's rows begin in a block
};

}  // namespace expertflow
