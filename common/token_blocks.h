// Sequences of tokens in the blocks that a KV cache holds them in. A block's hash stands for its
// tokens and all before them, so equal hashes mean equal prefixes, but for collisions: they serve
// to guess where a prefix is, never to decide what it is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/digest.h"

namespace expertflow {

// Tokens of one KV block.
inline constexpr int32_t kKvBlockTokens = 16;

// One for each full block of `tokens`, in order.
inline std::vector<uint64_t> BlockHashes(std::span<const int32_t> tokens) {
  std::vector<uint64_t> hashes;
  hashes.reserve(tokens.size() / kKvBlockTokens);
  Digest digest;
  for (size_t i = 0; i < tokens.size(); ++i) {
    digest.Fold(static_cast<uint64_t>(tokens[i]));
    if ((i + 1) % kKvBlockTokens == 0) hashes.push_back(digest.value());
  }
  return hashes;
}

}  // namespace expertflow
