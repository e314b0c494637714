// How many rows went to each expert since the start. One thread counts, any may look.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/messages.h"
#include "worker/cache/expert_cache.h"
#include "worker/expert_block_source.h"

namespace expertflow {

class ExpertRows {
 public:
  explicit ExpertRows(const ExpertBlockSource& source);

  void Count(LayerId layer, std::span<const LayerDemand> demands);
  // All experts as `place`.
  ExpertReport Report(ExpertPlace place) const;

 private:
  std::vector<uint32_t> layers_;   // those with experts
  std::vector<uint32_t> experts_;  // in each of these
  std::vector<size_t> first_;      // of each layer of the model
  size_t total_ = 0;
  std::unique_ptr<std::atomic<uint64_t>[]> rows_;  // [total_]
};

}  // namespace expertflow
