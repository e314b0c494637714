#include "model/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "model/tokenizer/byte_alphabet.h"

namespace expertflow {

void Vocabulary::Reserve(size_t tokens) {
  tokens_.reserve(tokens);
  ResizeIndex(std::bit_ceil(2 * tokens + 2));
}

Status Vocabulary::Add(std::string_view content, int64_t id) {
  if (id < 0 || id > kTokenIdMax) {
    return InvalidArgument(
        fmt::format("token '{}' has id {}, allowed are 0 to {}", content, id, kTokenIdMax));
  }
  const auto token_id = static_cast<int32_t>(id);
  if (const auto known = Find(content); known.has_value() && *known != token_id) {
    return InvalidArgument(
        fmt::format("token '{}' has two ids, {} and {}", content, *known, token_id));
  }
  if (Has(token_id)) {
    if (Content(token_id) == content) return OkStatus();
    return InvalidArgument(
        fmt::format("id {} has two tokens, '{}' and '{}'", id, Content(token_id), content));
  }

  if (index_.size() < 2 * (count_ + 1)) ResizeIndex(std::max<size_t>(64, 2 * index_.size()));
  if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[static_cast<size_t>(id)];
  index_[SlotFor(content)] = token_id;
  token.content_begin = static_cast<uint32_t>(contents_.size());
  token.content_bytes = static_cast<uint32_t>(content.size());
  contents_.append(content);
  token.spelled_begin = static_cast<uint32_t>(spelled_.size());
  AppendSpelledBytes(content, &spelled_);
  token.spelled_bytes = static_cast<uint32_t>(spelled_.size()) - token.spelled_begin;
  ++count_;
  return OkStatus();
}

std::optional<int32_t> Vocabulary::Find(std::string_view content) const {
  if (index_.empty()) return std::nullopt;
  const int32_t id = index_[SlotFor(content)];
  if (id == kEmptySlot) return std::nullopt;
  return id;
}

bool Vocabulary::Has(int32_t id) const {
  return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].content_begin != kUnused;
}

std::string_view Vocabulary::Content(int32_t id) const {
  if (!Has(id)) return {};
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(contents_).substr(token.content_begin, token.content_bytes);
}

std::string_view Vocabulary::Bytes(int32_t id) const {
  if (!Has(id)) return {};
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(spelled_).substr(token.spelled_begin, token.spelled_bytes);
}

size_t Vocabulary::SlotFor(std::string_view content) const {
  const size_t mask = index_.size() - 1;
  size_t slot = std::hash<std::string_view>()(content) & mask;
  while (index_[slot] != kEmptySlot && Content(index_[slot]) != content) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::ResizeIndex(size_t slots) {
  if (slots <= index_.size()) return;
  std::vector<int32_t> old(slots, kEmptySlot);
  old.swap(index_);
  for (const int32_t id : old) {
    if (id != kEmptySlot) index_[SlotFor(Content(id))] = id;
  }
}

}  // namespace expertflow
