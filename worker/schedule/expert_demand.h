// Which experts a sequence will use, as far as its tokens tell: a router chooses largely by the
// token, so what each token used is counted while the model runs. A pure policy; what it says
// changes who runs beside whom, never what they generate.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace expertflow {

class ExpertDemand {
 public:
  // `layers`: of the stack, those without experts are never observed.
  ExpertDemand(int32_t layers, int32_t experts, int64_t vocab);

  // A token chose these experts of a layer. REQUIRES: token >= 0
  void Observe(int32_t token, LayerId layer, std::span<const int32_t> experts);
  // The share of its latest tokens that use each expert of each layer [layers * experts].
  std::vector<float> Predict(std::span<const int32_t> tokens) const;

 private:
  size_t Cell(size_t bucket, LayerId layer) const {
    return (bucket * static_cast<size_t>(layers_) + layer.index()) * static_cast<size_t>(experts_);
  }

  const int32_t layers_;
  const int32_t experts_;
  const size_t buckets_;              // tokens share one when there are many
  std::vector<uint16_t> uses_;        // [buckets, layers, experts]
  std::vector<uint16_t> tokens_;      // [buckets, layers]: how many were observed
  std::vector<uint64_t> all_uses_;    // [layers, experts]
  std::vector<uint64_t> all_tokens_;  // [layers]
};

// How many experts `one` is expected to need that others do not: `unused` is the probability of
// each expert that no other sequence needs it. Same shape.
float ExpertsAdded(std::span<const float> unused, std::span<const float> one);

}  // namespace expertflow
