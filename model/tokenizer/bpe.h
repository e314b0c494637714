// Byte-pair encoding of one piece of text: the merges and the algorithm that applies them.
//
// Merging takes O(n log n) for n bytes: candidates wait in a heap by (rank, position), symbols form
// a linked list. Where no merge reaches over the beginning of a word, words are merged one by one,
// and those that come again are taken from a small cache. Immutable after loading; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "model/tokenizer/vocabulary.h"

namespace expertflow {

struct Merge {
  int32_t rank;  // lower merges first
  int32_t id;    // of the merged token
};

// (left id, right id) -> Merge, an open-addressing table.
class MergeTable {
 public:
  explicit MergeTable(size_t merges_max);
  // The next rank: `left` and `right` become `id`. A pair that is known gets the new merge.
  // REQUIRES: fewer than `merges_max` so far, ids >= 0
  void Append(int32_t left, int32_t right, int32_t id);
  // Makes an Append() or Find() that follows soon faster.
  void Prefetch(int32_t left, int32_t right) const;
  // nullptr when the pair does not merge. The pointer is valid until the next Append().
  const Merge* Find(int32_t left, int32_t right) const;
  int32_t IdOfRank(int32_t rank) const { return ids_[static_cast<size_t>(rank)]; }
  // Calls fn(left, right) for each pair.
  template <typename Fn>
  void ForEachPair(const Fn& fn) const {
    for (const Slot& slot : slots_) {
      if (slot.pair == kEmptyPair) continue;
      fn(static_cast<int32_t>(slot.pair >> 32), static_cast<int32_t>(slot.pair & UINT32_MAX));
    }
  }

 private:
  struct Slot {
    uint64_t pair = kEmptyPair;
    Merge merge = {};
  };
  static constexpr uint64_t kEmptyPair = UINT64_MAX;

  size_t FirstSlot(uint64_t pair) const;
  size_t SlotFor(uint64_t pair) const;

  std::vector<Slot> slots_;   // size a power of two, at most half full
  std::vector<int32_t> ids_;  // by rank
};

// Working memory of Bpe::Encode, to be reused from piece to piece by one thread.
struct BpeScratch {
  struct Symbol {
    int32_t id;
    int32_t previous;  // index, -1 at the ends
    int32_t next;
    Merge merge;  // of this symbol and the next; rank kNoMerge: none
  };
  static constexpr int32_t kNoMerge = -1;

  // A word and its ids, in a cache line. A word whose hash leads to the same place replaces it.
  struct CachedWord {
    static constexpr size_t kBytesMax = 31;
    static constexpr size_t kIdsMax = 7;
    std::array<int32_t, kIdsMax> ids;
    uint8_t id_count = 0;
    uint8_t byte_count = 0;  // 0: empty
    std::array<char, kBytesMax> bytes;
  };
  static constexpr size_t kCachedWords = 4096;

  std::vector<CachedWord> cache;  // empty, or kCachedWords
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol, the smallest in front
  std::string spelled;
};

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token as a whole is not split
  // The vocabulary holds text: merging begins with characters, those that are no token become their
  // bytes' tokens ("<0x41>"). Otherwise it holds the byte alphabet, and merging begins with bytes.
  bool byte_fallback = false;
  int32_t unknown = -1;       // with byte_fallback: for a character whose bytes are no tokens
  bool fuse_unknown = false;  // one for a run of them
};

class Bpe {
 public:
  Bpe(Vocabulary vocabulary, MergeTable merges, const BpeOptions& options);

  // A token of the vocabulary that no merge makes (Vocabulary::Add). While loading only.
  Status AddToken(std::string_view content, int64_t id) { return vocabulary_.Add(content, id); }

  // Appends the ids of `piece`. An error names the byte that no token stands for. The cache is used
  // when the scratch has one. REQUIRES: piece.size() <= INT32_MAX
  Status Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // False: there is a byte that Encode() refuses.
  bool HasAllBytes() const;

 private:
  // Of a piece, or of a word of it.
  Status EncodeWhole(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  Status EncodeCached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  bool NoMergeReachesOverWords() const;
  // What merging begins with, unlinked.
  Status AddBytes(std::string_view piece, BpeScratch* scratch) const;
  Status AddCharacters(std::string_view piece, BpeScratch* scratch) const;
  // Sets the merge of symbol `left` and the next; appends it to the heap when there is one.
  bool Offer(int32_t left, BpeScratch* scratch) const;
  void MergeAll(BpeScratch* scratch) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;  // -1: no such token
  BpeOptions options_;
  // A word begins with kWordMark that follows something else; merges stay within words.
  bool by_words_ = false;
};

}  // namespace expertflow
