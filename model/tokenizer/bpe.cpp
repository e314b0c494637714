#include "model/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "model/tokenizer/byte_alphabet.h"

namespace expertflow {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// True when `a` merges after `b`: std heaps keep the largest in front.
bool MergesLater(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  if (a.merge.rank != b.merge.rank) return a.merge.rank > b.merge.rank;
  return a.left > b.left;
}

}  // namespace

MergeTable::MergeTable(size_t merges_max) : slots_(std::bit_ceil(2 * merges_max + 2)) {}

void MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = PairKey(left, right);
  slots_[SlotFor(pair)] = {pair, merge};
}

const Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[SlotFor(PairKey(left, right))];
  return slot.pair == kEmptyPair ? nullptr : &slot.merge;
}

size_t MergeTable::SlotFor(uint64_t pair) const {
  // Fibonacci hashing: the high bits of the product are well mixed.
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  const uint64_t hash = (pair ^ pair >> 29) * kMultiplier;
  const size_t mask = slots_.size() - 1;
  size_t slot = static_cast<size_t>(hash >> 32) & mask;
  while (slots_[slot].pair != kEmptyPair && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

Bpe::Bpe(Vocabulary vocabulary, MergeTable merges, bool ignore_merges)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      ignore_merges_(ignore_merges) {
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = vocabulary_.Find(ByteCharacter(static_cast<uint8_t>(byte))).value_or(-1);
  }
}

bool Bpe::HasAllBytes() const {
  return std::none_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id < 0; });
}

Status Bpe::Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    scratch->spelled.clear();
    for (const char c : piece) scratch->spelled.append(ByteCharacter(static_cast<uint8_t>(c)));
    if (const auto whole = vocabulary_.Find(scratch->spelled); whole.has_value()) {
      ids->push_back(*whole);
      return OkStatus();
    }
  }
  scratch->symbols.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    if (byte_ids_[byte] < 0) {
      return InvalidArgument(fmt::format(
          "the text has byte 0x{:02X}, and the vocabulary has no token '{}' for it: this tokenizer "
          "cannot encode the text",
          byte, ByteCharacter(byte)));
    }
    const auto index = static_cast<int32_t>(i);
    scratch->symbols.push_back({byte_ids_[byte], index - 1, index + 1});
  }
  if (scratch->symbols.empty()) return OkStatus();
  scratch->symbols.back().next = -1;
  MergeAll(scratch);
  for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) {
    ids->push_back(scratch->symbols[i].id);
  }
  return OkStatus();
}

void Bpe::Offer(int32_t left, BpeScratch* scratch) const {
  if (left < 0) return;
  const BpeScratch::Symbol& symbol = scratch->symbols[left];
  if (symbol.next < 0) return;
  const Merge* merge = merges_.Find(symbol.id, scratch->symbols[symbol.next].id);
  if (merge != nullptr) scratch->heap.push_back({*merge, left});
}

void Bpe::MergeAll(BpeScratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) Offer(static_cast<int32_t>(i), scratch);
  std::make_heap(heap.begin(), heap.end(), MergesLater);

  const auto offer = [&](int32_t left) {
    const size_t before = heap.size();
    Offer(left, scratch);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), MergesLater);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), MergesLater);
    const BpeScratch::Candidate candidate = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[candidate.left];
    if (left.id == BpeScratch::kGone || left.next < 0) continue;
    BpeScratch::Symbol& right = symbols[left.next];
    // The symbols may have changed since the candidate was offered.
    const Merge* current = merges_.Find(left.id, right.id);
    if (current == nullptr || current->id != candidate.merge.id) continue;

    left.id = candidate.merge.id;
    right.id = BpeScratch::kGone;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = candidate.left;
    offer(left.previous);
    offer(candidate.left);
  }
}

}  // namespace expertflow
