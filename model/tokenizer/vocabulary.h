// Tokens by id and by content. Filled once while loading, then immutable.
//
// "Content" is the token as tokenizer.json writes it ("Ġthe", "<|im_end|>"), "bytes" what it stands
// for in text (" the"). All strings lie in two arenas; the content index is an open-addressing
// table of ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace expertflow {

class Vocabulary {
 public:
  static constexpr int64_t kTokenIdMax = 1 << 24;

  // How content spells bytes: in the byte alphabet, or as text in which one string stands for
  // another ("\u2581" for a space) and "<0x41>" for a byte.
  struct TextSpelling {
    std::string from;  // empty: nothing is replaced
    std::string to;
  };
  // REQUIRES: nothing was added
  void SpellAsText(TextSpelling spelling) { text_spelling_ = std::move(spelling); }

  void Reserve(size_t tokens);

  // Adding the same token again changes nothing. Errors: `id` outside [0, kTokenIdMax], `id` taken
  // by another content, `content` known by another id.
  Status Add(std::string_view content, int64_t id);

  std::optional<int32_t> Find(std::string_view content) const;
  // Makes an Add() or Find() that follows soon faster. REQUIRES: Reserve() was called
  void Prefetch(std::string_view content) const {
    __builtin_prefetch(&index_[HashOf(content) & (index_.size() - 1)]);
  }

  // The largest id + 1; ids below it may be unused.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool Has(int32_t id) const;
  // Empty for an id that is not used.
  std::string_view Content(int32_t id) const;
  std::string_view Bytes(int32_t id) const;

 private:
  struct Token {
    uint32_t content_begin = kUnused;
    uint32_t content_bytes = 0;
    uint32_t spelled_begin = 0;
    uint32_t spelled_bytes = 0;
  };
  static constexpr uint32_t kUnused = UINT32_MAX;
  // Holds all that a look-up needs, so that one costs two cache misses.
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;  // -1: empty
    uint32_t content_begin = 0;
    uint32_t content_bytes = 0;
  };

  static uint32_t HashOf(std::string_view content);
  // The slot that holds `content`, or the empty one where it would go. REQUIRES: a slot is empty
  size_t SlotFor(std::string_view content, uint32_t hash) const;
  void ResizeIndex(size_t slots);

  void AppendText(std::string_view content);

  std::optional<TextSpelling> text_spelling_;
  std::string contents_;
  std::string spelled_;
  std::vector<Token> tokens_;  // by id
  std::vector<Slot> index_;    // by hash of content; size a power of two, at most half full
  size_t count_ = 0;
};

}  // namespace expertflow
