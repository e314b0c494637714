// What a recorded routing says about the experts of a layer: how often each was used, and which
// were used together. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing_trace.h"

namespace expertflow {

struct LayerUse {
  std::vector<uint64_t> uses;  // [experts]: tokens that chose it
  // [experts, experts], symmetric, zeros in the diagonal: tokens that chose both
  std::vector<uint64_t> together;

  size_t experts() const { return uses.size(); }
};

// REQUIRES: 0 <= layer < trace.layers()
LayerUse CountUse(const RoutingTrace& trace, int32_t layer);

// All experts, each once, so that those used together tend to be neighbours: pairs are taken by how
// often they were used together, and each joins two ends of chains that are apart (the greedy edge
// heuristic for a heavy Hamiltonian path). Chains follow each other by their uses; ties go to the
// lower number.
std::vector<int32_t> OrderByCoActivation(const LayerUse& use);

// The `count` experts with the most uses over all layers, true for each, [layer][expert]; ties go
// to the lower layer and number.
std::vector<std::vector<bool>> MostUsed(const std::vector<LayerUse>& layers, size_t count);

}  // namespace expertflow
