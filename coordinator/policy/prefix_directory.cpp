#include "coordinator/policy/prefix_directory.h"

#include <algorithm>

namespace expertflow {

size_t PrefixDirectory::CountKnown(std::span<const uint64_t> blocks) const {
  const auto unknown = std::find_if(blocks.begin(), blocks.end(),
                                    [this](uint64_t block) { return !known_.contains(block); });
  return static_cast<size_t>(unknown - blocks.begin());
}

void PrefixDirectory::Add(std::span<const uint64_t> blocks) {
  blocks = blocks.first(std::min(blocks.size(), blocks_max_));
  // The end first, so that it is forgotten before the beginning.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const auto [entry, is_new] = known_.try_emplace(*block, ++clock_);
    if (!is_new) {
      order_.erase(entry->second);
      entry->second = clock_;
    }
    order_.emplace(clock_, *block);
  }
  while (known_.size() > blocks_max_) {
    known_.erase(order_.begin()->second);
    order_.erase(order_.begin());
  }
}

}  // namespace expertflow
