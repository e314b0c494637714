// Which beginnings of sequences a worker probably has in its KV cache, as hashes of blocks
// (common/token_blocks.h). What the worker truly keeps it decides itself; this is a guess from what
// it was given, with room for as many blocks as it has, the least recently given forgotten first. A
// pure policy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

namespace expertflow {

class PrefixDirectory {
 public:
  // `blocks_max` 0: it keeps nothing.
  explicit PrefixDirectory(size_t blocks_max) : blocks_max_(blocks_max) {}

  // How many of the first blocks are there.
  size_t CountKnown(std::span<const uint64_t> blocks) const;
  // They are there from now on.
  void Add(std::span<const uint64_t> blocks);
  size_t size() const { return known_.size(); }

 private:
  const size_t blocks_max_;
  std::map<uint64_t, uint64_t> known_;  // hash to when it was added
  std::map<uint64_t, uint64_t> order_;  // and back
  uint64_t clock_ = 0;
};

}  // namespace expertflow
