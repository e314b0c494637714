// Who holds which block of the KV cache, and what can be used again: a pure policy.
//
// Each sequence has a table of blocks. A block that is full is known by its tokens and the block
// before it, so the known blocks form a tree, and a sequence that begins with the same tokens takes
// them from there: the keys and values of a token follow from the tokens up to it, the model and
// the form of the cache, and the latter two are the same for all blocks here. A known block may be
// held by several sequences and is never written again. Of one that agrees only in its first
// tokens, these are copied to a block of the sequence's own.
//
// A block that nobody holds stays known until its place is needed: the one that was given up
// longest ago goes first, the end of a sequence before its beginning. Blocks are compared by their
// tokens, not by a hash.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/token_blocks.h"

namespace expertflow {

// The blocks of a sequence, in the order of its tokens.
struct KvTable {
  std::vector<int32_t> blocks;
  int32_t known = 0;  // so many of the first ones are in the tree
};

class KvBlocks {
 public:
  // `reuse`: keep blocks after their sequences, for others.
  KvBlocks(int64_t count, bool reuse);
  KvBlocks(const KvBlocks&) = delete;
  KvBlocks& operator=(const KvBlocks&) = delete;

  static int64_t BlocksFor(int64_t tokens) {
    return (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
  }

  int64_t total() const { return static_cast<int64_t>(blocks_.size()); }
  // Those that a sequence can get: empty ones, and known ones that nobody holds.
  int64_t available() const { return static_cast<int64_t>(empty_.size() + unheld_.size()); }
  int64_t held() const { return total() - available(); }
  // Of the available ones: known.
  int64_t kept() const { return static_cast<int64_t>(unheld_.size()); }

  struct Reused {
    int64_t tokens = 0;  // of the sequence, from its first on, that are there now
    // The last of these, `copied` of them, are at the beginning of block copy_from and have to be
    // copied to copy_to before either is written.
    int32_t copied = 0;
    int32_t copy_from = -1;
    int32_t copy_to = -1;
  };
  // Lets a sequence of which the first table->known blocks are there go on with what others
  // computed, up to `limit` of its tokens.
  Reused Reuse(KvTable* table, std::span<const int32_t> tokens, int64_t limit);
  // How many blocks Reuse() would find that others hold: those take no available one.
  int64_t CountHeld(std::span<const int32_t> tokens, int64_t limit) const;
  // Lengthens the table to `count` blocks; false, and nothing changes, when there are too few.
  bool Reserve(KvTable* table, int64_t count);
  // The first `computed` tokens are in the table's blocks: full ones become known. One that was
  // known already takes the place of the sequence's own.
  void Computed(KvTable* table, std::span<const int32_t> tokens, int64_t computed);
  // Gives all blocks back.
  void Release(KvTable* table);

  // So many more, numbered on.
  void Grow(int64_t count);
  // The last `count` blocks go, with what is known of them and what comes after that. False, and
  // nothing changes, when one of them is held.
  bool Shrink(int64_t count);

  // For tests. `tables`: of all sequences.
  Status CheckInvariants(std::span<const KvTable* const> tables) const;

 private:
  // A known block: the one before it, or -1, and its tokens. Of a shorter list the rest is -1,
  // which is no token.
  struct Key {
    int32_t parent = -1;
    std::array<int32_t, kKvBlockTokens> tokens;
    auto operator<=>(const Key&) const = default;
  };
  using Tree = std::map<Key, int32_t>;
  struct Block {
    int32_t holders = 0;
    uint64_t given_up = 0;  // when the last holder went
    Tree::iterator node;    // end: not known
  };

  // Of the block that would come after `parent` and begins with tokens[0].
  static Key KeyOf(int32_t parent, std::span<const int32_t> tokens);
  Key NextKey(const KvTable& table, std::span<const int32_t> tokens) const;
  void ReuseBeginning(KvTable* table, std::span<const int32_t> tokens, int64_t limit,
                      Reused* reused);
  // The known block after key.parent that begins like `key`, and for how many tokens.
  std::pair<int32_t, int32_t> MostAlike(const Key& key) const;
  int32_t Take();  // -1: none is available
  void Hold(int32_t block);
  void Drop(int32_t block);
  // An unheld, known block and all that are known after it are empty from now on.
  void Forget(int32_t block);
  // Puts a held, known block at the end of the known ones.
  void Append(KvTable* table, int32_t block);

  const bool reuse_;
  std::vector<Block> blocks_;
  Tree tree_;
  std::set<int32_t> empty_;             // the lowest is taken first
  std::map<uint64_t, int32_t> unheld_;  // known, by when they were given up
  uint64_t clock_ = 0;
};

}  // namespace expertflow
