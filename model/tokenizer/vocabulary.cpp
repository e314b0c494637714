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
  if (index_.size() < 2 * (count_ + 1)) ResizeIndex(std::max<size_t>(64, 2 * index_.size()));
  const auto token_id = static_cast<int32_t>(id);
  const uint32_t hash = HashOf(content);
  Slot& slot = index_[SlotFor(content, hash)];
  if (slot.id == token_id) return OkStatus();
  if (slot.id >= 0) {
    return InvalidArgument(
        fmt::format("token '{}' has two ids, {} and {}", content, slot.id, token_id));
  }
  if (Has(token_id)) {
    return InvalidArgument(
        fmt::format("id {} has two tokens, '{}' and '{}'", id, Content(token_id), content));
  }

  if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[static_cast<size_t>(id)];
  token.content_begin = static_cast<uint32_t>(contents_.size());
  token.content_bytes = static_cast<uint32_t>(content.size());
  contents_.append(content);
  token.spelled_begin = static_cast<uint32_t>(spelled_.size());
  if (text_spelling_) {
    AppendText(content);
  } else {
    AppendSpelledBytes(content, &spelled_);
  }
  token.spelled_bytes = static_cast<uint32_t>(spelled_.size()) - token.spelled_begin;
  slot = {hash, token_id, token.content_begin, token.content_bytes};
  ++count_;
  return OkStatus();
}

void Vocabulary::AppendText(std::string_view content) {
  if (const auto byte = ByteOfToken(content)) {
    spelled_.push_back(static_cast<char>(*byte));
    return;
  }
  const std::string& from = text_spelling_->from;
  size_t at = 0;
  while (!from.empty()) {
    const size_t found = content.find(from, at);
    if (found == std::string_view::npos) break;
    spelled_.append(content.substr(at, found - at)).append(text_spelling_->to);
    at = found + from.size();
  }
  spelled_.append(content.substr(at));
}

std::optional<int32_t> Vocabulary::Find(std::string_view content) const {
  if (index_.empty()) return std::nullopt;
  const int32_t id = index_[SlotFor(content, HashOf(content))].id;
  if (id < 0) return std::nullopt;
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

uint32_t Vocabulary::HashOf(std::string_view content) {
  return static_cast<uint32_t>(std::hash<std::string_view>()(content));
}

size_t Vocabulary::SlotFor(std::string_view content, uint32_t hash) const {
  const size_t mask = index_.size() - 1;
  const std::string_view contents = contents_;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot& slot = index_[i];
    if (slot.id < 0) return i;
    if (slot.hash == hash && contents.substr(slot.content_begin, slot.content_bytes) == content) {
      return i;
    }
  }
}

void Vocabulary::ResizeIndex(size_t slots) {
  if (slots <= index_.size()) return;
  std::vector<Slot> old(slots);
  old.swap(index_);
  const size_t mask = slots - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t i = slot.hash & mask;
    while (index_[i].id >= 0) i = (i + 1) & mask;
    index_[i] = slot;
  }
}

}  // namespace expertflow
