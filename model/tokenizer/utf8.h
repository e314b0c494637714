// UTF-8 as a stream of bytes that may be broken: the one place that decides where a character ends
// and what is replaced. Pure functions, any thread.
//
// Broken bytes follow "substitution of maximal subparts" (Unicode standard, section 3.9): each
// longest prefix of a well-formed sequence becomes one U+FFFD. That is what Rust's from_utf8_lossy
// does, and so what the reference tokenizers print.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace expertflow {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind {
  kCharacter,  // a well-formed character
  kBroken,     // bytes that no continuation can repair: one U+FFFD
  kCut,        // the text ends inside a sequence that is well-formed so far
};

struct Utf8Step {
  Utf8Kind kind;
  uint8_t bytes;        // that this step takes, 1 to 4
  char32_t code_point;  // of a kCharacter
};

// The first step of `text`. REQUIRES: !text.empty()
Utf8Step NextUtf8(std::string_view text);

// Appends `bytes` with everything broken or cut replaced by U+FFFD.
void AppendLossyUtf8(std::string_view bytes, std::string* out);
bool IsValidUtf8(std::string_view bytes);
bool IsAscii(std::string_view bytes);

// Steps over well-formed text. REQUIRES: well-formed UTF-8, not empty
char32_t LastCodePoint(std::string_view text);

// The White_Space property, and the word characters of the reference's `\w`.
bool IsWhiteSpace(char32_t code_point);
bool IsWordCharacter(char32_t code_point);

}  // namespace expertflow
