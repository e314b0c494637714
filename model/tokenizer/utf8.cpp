#include "model/tokenizer/utf8.h"

#include <utf8proc.h>

#include <cstring>

namespace expertflow {
namespace {

struct SequenceShape {
  uint8_t length = 0;  // 0: no sequence starts with this byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

// Table 3-7 of the Unicode standard: the second byte's range excludes overlong forms, surrogates
// and code points past U+10FFFF.
SequenceShape ShapeOf(uint8_t lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2) return {0};
  if (lead < 0xE0) return {2};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const SequenceShape shape = ShapeOf(byte(0));
  if (shape.length == 0) return {Utf8Kind::kBroken, 1, 0};
  if (shape.length == 1) return {Utf8Kind::kCharacter, 1, byte(0)};
  char32_t code_point = byte(0) & (0x7F >> shape.length);
  for (uint8_t i = 1; i < shape.length; ++i) {
    if (i == text.size()) return {Utf8Kind::kCut, i, 0};
    const uint8_t min = i == 1 ? shape.second_min : 0x80;
    const uint8_t max = i == 1 ? shape.second_max : 0xBF;
    if (byte(i) < min || byte(i) > max) return {Utf8Kind::kBroken, i, 0};
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  return {Utf8Kind::kCharacter, shape.length, code_point};
}

void AppendLossyUtf8(std::string_view bytes, std::string* out) {
  out->reserve(out->size() + bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    const bool whole = step.kind == Utf8Kind::kCharacter;
    out->append(whole ? bytes.substr(0, step.bytes) : kReplacementCharacter);
    bytes.remove_prefix(step.bytes);
  }
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind != Utf8Kind::kCharacter) return false;
    bytes.remove_prefix(step.bytes);
  }
  return true;
}

bool IsAscii(std::string_view bytes) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if ((word & kHighBits) != 0) return false;
  }
  for (; i < bytes.size(); ++i) {
    if (static_cast<uint8_t>(bytes[i]) >= 0x80) return false;
  }
  return true;
}

char32_t LastCodePoint(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return NextUtf8(text.substr(begin)).code_point;
}

bool IsWhiteSpace(char32_t code_point) {
  if (code_point >= 0x09 && code_point <= 0x0D) return true;
  if (code_point == 0x85) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    default: return false;
  }
}

bool IsWordCharacter(char32_t code_point) {
  constexpr char32_t kZeroWidthNonJoiner = 0x200C;
  constexpr char32_t kZeroWidthJoiner = 0x200D;
  if (code_point == kZeroWidthNonJoiner || code_point == kZeroWidthJoiner) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_SO:  // circled and squared letters are alphabetic
      return (code_point >= 0x24B6 && code_point <= 0x24E9) ||
             (code_point >= 0x1F130 && code_point <= 0x1F149) ||
             (code_point >= 0x1F150 && code_point <= 0x1F169) ||
             (code_point >= 0x1F170 && code_point <= 0x1F189);
    default: return false;
  }
}

}  // namespace expertflow
