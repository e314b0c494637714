// The rows that go down a ByteForest together, as both of its instruction sets see them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "predictor/core/random_forest.h"

namespace expertflow::byte_forest {

inline constexpr size_t kRows = 64;          // of a block
inline constexpr size_t kHalf = kRows / 2;   // bytes of an AVX2 register
inline constexpr size_t kPlaces = 256;       // of a byte
inline constexpr size_t kTableEntries = 16;  // the smallest table of a level's nodes
inline constexpr uint8_t kSign = 0x80;       // comparisons are of signed bytes

// [features, rows] each feature's number.
struct FeatureRows {
  alignas(kRows) std::array<uint8_t, kForestFeaturesMax* kRows> number = {};
  constexpr FeatureRows() {
    for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<uint8_t>(i / kRows);
  }
};
inline constexpr FeatureRows kFeatureRows;

}  // namespace expertflow::byte_forest
