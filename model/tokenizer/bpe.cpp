#include "model/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/utf8.h"

namespace expertflow {
namespace {

// What SentencePiece writes for a space.
constexpr std::string_view kWordMark = "\u2581";

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t merges_max) : slots_(std::bit_ceil(2 * merges_max + 2)) {
  ids_.reserve(merges_max);
}

void MergeTable::Append(int32_t left, int32_t right, int32_t id) {
  const uint64_t pair = PairKey(left, right);
  slots_[SlotFor(pair)] = {pair, {static_cast<int32_t>(ids_.size()), id}};
  ids_.push_back(id);
}

const Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[SlotFor(PairKey(left, right))];
  return slot.pair == kEmptyPair ? nullptr : &slot.merge;
}

void MergeTable::Prefetch(int32_t left, int32_t right) const {
  __builtin_prefetch(&slots_[FirstSlot(PairKey(left, right))]);
}

size_t MergeTable::FirstSlot(uint64_t pair) const {
  // Fibonacci hashing: the high bits of the product are well mixed.
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  const uint64_t hash = (pair ^ pair >> 29) * kMultiplier;
  return static_cast<size_t>(hash >> 32) & (slots_.size() - 1);
}

size_t MergeTable::SlotFor(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = FirstSlot(pair);
  while (slots_[slot].pair != kEmptyPair && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

Bpe::Bpe(Vocabulary vocabulary, MergeTable merges, const BpeOptions& options)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(options) {
  for (size_t i = 0; i < byte_ids_.size(); ++i) {
    const auto byte = static_cast<uint8_t>(i);
    const auto id = options_.byte_fallback ? vocabulary_.Find(ByteToken(byte))
                                           : vocabulary_.Find(ByteCharacter(byte));
    byte_ids_[i] = id.value_or(-1);
  }
  by_words_ = options_.byte_fallback && !options_.ignore_merges &&
              vocabulary_.Find(kWordMark).has_value() && NoMergeReachesOverWords();
}

bool Bpe::NoMergeReachesOverWords() const {
  bool within = true;
  merges_.ForEachPair([&](int32_t left, int32_t right) {
    within = within && (!vocabulary_.Content(right).starts_with(kWordMark) ||
                        vocabulary_.Content(left).ends_with(kWordMark));
  });
  return within;
}

bool Bpe::HasAllBytes() const {
  return std::none_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id < 0; });
}

Status Bpe::Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  if (!by_words_) return EncodeCached(piece, scratch, ids);
  while (!piece.empty()) {
    // Where a mark follows something else. A word may begin with several.
    size_t at = 0;
    while (piece.substr(at).starts_with(kWordMark)) at += kWordMark.size();
    const size_t end = std::min(piece.find(kWordMark, at), piece.size());
    RETURN_IF_ERROR(EncodeCached(piece.substr(0, end), scratch, ids));
    piece.remove_prefix(end);
  }
  return OkStatus();
}

Status Bpe::EncodeCached(std::string_view word, BpeScratch* scratch,
                         std::vector<int32_t>* ids) const {
  using Cached = BpeScratch::CachedWord;
  if (scratch->cache.empty() || word.empty() || word.size() > Cached::kBytesMax) {
    return EncodeWhole(word, scratch, ids);
  }
  Cached& cached = scratch->cache[std::hash<std::string_view>()(word) % BpeScratch::kCachedWords];
  if (std::string_view(cached.bytes.data(), cached.byte_count) == word) {
    ids->insert(ids->end(), cached.ids.begin(), cached.ids.begin() + cached.id_count);
    return OkStatus();
  }
  const size_t before = ids->size();
  RETURN_IF_ERROR(EncodeWhole(word, scratch, ids));
  const size_t count = ids->size() - before;
  if (count > Cached::kIdsMax) return OkStatus();
  std::copy(word.begin(), word.end(), cached.bytes.begin());
  cached.byte_count = static_cast<uint8_t>(word.size());
  std::copy(ids->begin() + static_cast<ptrdiff_t>(before), ids->end(), cached.ids.begin());
  cached.id_count = static_cast<uint8_t>(count);
  return OkStatus();
}

Status Bpe::EncodeWhole(std::string_view piece, BpeScratch* scratch,
                        std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    std::string_view content = piece;
    if (!options_.byte_fallback) {
      scratch->spelled.clear();
      for (const char c : piece) scratch->spelled.append(ByteCharacter(static_cast<uint8_t>(c)));
      content = scratch->spelled;
    }
    if (const auto whole = vocabulary_.Find(content); whole.has_value()) {
      ids->push_back(*whole);
      return OkStatus();
    }
  }
  auto& symbols = scratch->symbols;
  symbols.clear();
  RETURN_IF_ERROR(options_.byte_fallback ? AddCharacters(piece, scratch)
                                         : AddBytes(piece, scratch));
  if (symbols.empty()) return OkStatus();
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int32_t>(i) - 1;
    symbols[i].next = static_cast<int32_t>(i) + 1;
  }
  symbols.back().next = -1;
  MergeAll(scratch);
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
  return OkStatus();
}

Status Bpe::AddBytes(std::string_view piece, BpeScratch* scratch) const {
  for (const char c : piece) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte_ids_[byte] < 0) {
      return InvalidArgument(fmt::format(
          "the text has byte 0x{:02X}, and the vocabulary has no token '{}' for it: this tokenizer "
          "cannot encode the text",
          byte, ByteCharacter(byte)));
    }
    scratch->symbols.push_back({byte_ids_[byte], -1, -1, {BpeScratch::kNoMerge, 0}});
  }
  return OkStatus();
}

Status Bpe::AddCharacters(std::string_view piece, BpeScratch* scratch) const {
  const auto add = [&](int32_t id) {
    scratch->symbols.push_back({id, -1, -1, {BpeScratch::kNoMerge, 0}});
  };
  bool after_unknown = false;
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, NextUtf8(piece).bytes);
    piece.remove_prefix(character.size());
    const bool was_unknown = std::exchange(after_unknown, false);
    if (const auto id = vocabulary_.Find(character)) {
      add(*id);
      continue;
    }
    const bool has_bytes = std::all_of(character.begin(), character.end(), [&](char c) {
      return byte_ids_[static_cast<uint8_t>(c)] >= 0;
    });
    if (has_bytes) {
      for (const char c : character) add(byte_ids_[static_cast<uint8_t>(c)]);
      continue;
    }
    if (options_.unknown < 0) {
      return InvalidArgument(fmt::format(
          "the text has the character '{}', and the vocabulary has no token for it or its bytes: "
          "this tokenizer cannot encode the text",
          character));
    }
    after_unknown = true;
    if (!was_unknown || !options_.fuse_unknown) add(options_.unknown);
  }
  return OkStatus();
}

bool Bpe::Offer(int32_t left, BpeScratch* scratch) const {
  BpeScratch::Symbol& symbol = scratch->symbols[left];
  const Merge* merge =
      symbol.next < 0 ? nullptr : merges_.Find(symbol.id, scratch->symbols[symbol.next].id);
  symbol.merge = merge == nullptr ? Merge{BpeScratch::kNoMerge, 0} : *merge;
  if (merge == nullptr) return false;
  scratch->heap.push_back(static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(left));
  return true;
}

void Bpe::MergeAll(BpeScratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) Offer(static_cast<int32_t>(i), scratch);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  const auto offer = [&](int32_t left) {
    if (Offer(left, scratch)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<int32_t>(heap.back() >> 32);
    const auto index = static_cast<int32_t>(heap.back() & UINT32_MAX);
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[index];
    // The symbols may have changed since; as in the reference, what counts is whether they still
    // merge to the same token.
    const bool current = left.merge.rank == rank || (left.merge.rank != BpeScratch::kNoMerge &&
                                                     left.merge.id == merges_.IdOfRank(rank));
    if (!current) continue;

    BpeScratch::Symbol& right = symbols[left.next];
    left.id = left.merge.id;
    left.next = right.next;
    right.merge.rank = BpeScratch::kNoMerge;
    if (left.next >= 0) symbols[left.next].previous = index;
    if (left.previous >= 0) offer(left.previous);
    offer(index);
  }
}

}  // namespace expertflow
