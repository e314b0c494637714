// Random checkpoints with the shapes of a real model, for benchmarks: the weights mean nothing, but
// activations stay in a sane range and the router spreads its choices.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/dtype.h"
#include "common/status.h"
#include "model/checkpoint/weight_plan.h"

namespace expertflow {

struct SyntheticOptions {
  DType dtype = DType::kBF16;
  uint64_t seed = 0;
  uint64_t shard_bytes = 4'000'000'000;  // a larger model gets several shards and an index
  // Optional; called on the calling thread after each tensor or large piece of one.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

// Writes config.json and the safetensors files of all planned tensors into `folder`, which is
// created if need be and must hold no checkpoint yet. Equal arguments give equal bytes. A full disk
// is kResourceExhausted; the files that were complete by then stay.
Status WriteSyntheticCheckpoint(const WeightPlan& plan, const std::string& config_json,
                                const std::string& folder, const SyntheticOptions& options);

}  // namespace expertflow
