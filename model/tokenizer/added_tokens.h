// Finds added tokens ("<|im_start|>") in text before anything else looks at it. Immutable after
// Build(); any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace expertflow {

struct AddedToken {
  // Bounds the work at each position of a text.
  static constexpr size_t kContentBytesMax = 1024;

  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // is looked for in the normalized text
  bool special = false;      // Decode() can leave it out
};

class AddedTokenMatcher {
 public:
  struct Segment {
    static constexpr int32_t kText = -1;
    int32_t id;             // of the added token, or kText
    std::string_view text;  // of a kText segment, never empty
  };

  // REQUIRES: contents are 1 to kContentBytesMax bytes. Of two with the same content the first
  // counts.
  void Build(std::vector<AddedToken> tokens);

  // Leftmost match first, the longest of several at one place. Appends to `segments`.
  // REQUIRES: `text` is well-formed UTF-8
  void Split(std::string_view text, std::vector<Segment>* segments) const;

 private:
  // The longest token at the beginning of `text`, or nullptr.
  const AddedToken* LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  // Tokens whose first byte is b: [first_[b], first_[b + 1]).
  std::array<uint32_t, 257> first_ = {};
};

}  // namespace expertflow
