// Routing that was not recorded: drawn with stated statistics, for models of which there is no
// trace, and predictions of a stated quality. Whatever uses it says so. Pure; equal seeds give
// equal results wherever the C library rounds alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/device_simulator.h"
#include "sim/routing_trace.h"

namespace expertflow {

struct SyntheticRouting {
  std::vector<int32_t> experts;  // of each MoE layer
  int32_t top_k = 0;
  uint64_t expert_bytes = 0;
  int32_t sequences = 0;
  int32_t tokens = 0;  // of each sequence
  // A sequence prefers some experts of each layer: weights w ~ rank^-skew in an order of its own,
  // which shares `common` of its log-weight with all other sequences.
  double skew = 0.8;
  double common = 0.3;
  // The chance that a choice of the token before is made again.
  double persistence = 0.3;
  uint64_t seed = 1;
};

// REQUIRES: 0 < top_k <= experts of each layer, at most 65,536; counts > 0
RoutingTrace SynthesizeRouting(const SyntheticRouting& options);

// Predictions that hold the true choices among `recall(distance)` of the top k, within two or three
// points: the score of an expert is normal noise, shifted for those that are used, by as much as
// gives that recall; its probability is the calibrated one of that score. Noise is drawn anew for
// each (step, layer, distance).
class NoisyOracle final : public PredictionSource {
 public:
  // recall[j]: recall@k at distance j + 1; farther ones are as the last. REQUIRES: not empty, each
  // in (0, 1]; the lockstep outlives it
  NoisyOracle(const RoutingTrace& trace, const Lockstep& lockstep, std::vector<double> recall,
              uint64_t seed);
  void Predict(size_t step, int32_t target, int32_t distance,
               std::span<uint32_t> probability_ppm) override;

 private:
  const RoutingTrace& trace_;
  const Lockstep& lockstep_;
  std::vector<double> recall_;
  std::vector<std::vector<float>> shift_;  // [distance][layer]; infinite: the truth
  uint64_t seed_;
  std::vector<float> scores_;  // scratch: by expert of the target
};

// How often the sequence has used each expert so far, as MoE-Infinity's activation tracing and
// caches by frequency predict: probability = share of the sequence's tokens.
class ActivationFrequency final : public PredictionSource {
 public:
  ActivationFrequency(const RoutingTrace& trace, const Lockstep& lockstep);
  void Predict(size_t step, int32_t target, int32_t distance,
               std::span<uint32_t> probability_ppm) override;
  void Observe(size_t step, int32_t layer) override;

 private:
  const RoutingTrace& trace_;
  const Lockstep& lockstep_;
  std::vector<std::vector<uint32_t>> uses_;  // [lane][expert, numbered through]
  std::vector<uint32_t> tokens_;             // [lane]
};

}  // namespace expertflow
