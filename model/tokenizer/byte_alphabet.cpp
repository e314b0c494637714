#include "model/tokenizer/byte_alphabet.h"

#include <charconv>
#include <system_error>

#include <array>

#include "model/tokenizer/utf8.h"

namespace expertflow {
namespace {

constexpr size_t kCharacterEnd = 0x144;  // past the last character of the alphabet, U+0143

struct Alphabet {
  std::array<char[2], 256> utf8 = {};
  std::array<uint8_t, 256> utf8_bytes = {};
  std::array<int16_t, kCharacterEnd> byte_of = {};  // -1: not in the alphabet
};

constexpr bool PrintsInLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte_of) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = PrintsInLatin1(byte) ? byte : next++;
    alphabet.byte_of[character] = static_cast<int16_t>(byte);
    if (character < 0x80) {
      alphabet.utf8[byte][0] = static_cast<char>(character);
      alphabet.utf8_bytes[byte] = 1;
    } else {
      alphabet.utf8[byte][0] = static_cast<char>(0xC0 | character >> 6);
      alphabet.utf8[byte][1] = static_cast<char>(0x80 | (character & 0x3F));
      alphabet.utf8_bytes[byte] = 2;
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string_view ByteCharacter(uint8_t byte) {
  return {kAlphabet.utf8[byte], kAlphabet.utf8_bytes[byte]};
}

void AppendSpelledBytes(std::string_view content, std::string* out) {
  const size_t begin = out->size();
  std::string_view rest = content;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    const bool spells = step.kind == Utf8Kind::kCharacter && step.code_point < kCharacterEnd &&
                        kAlphabet.byte_of[step.code_point] >= 0;
    if (!spells) {
      out->resize(begin);
      out->append(content);
      return;
    }
    out->push_back(static_cast<char>(kAlphabet.byte_of[step.code_point]));
    rest.remove_prefix(step.bytes);
  }
}

std::optional<uint8_t> ByteOfToken(std::string_view content) {
  if (content.size() != 6 || !content.starts_with("<0x") || content[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* const end = content.data() + 5;
  const auto [stopped, error] = std::from_chars(content.data() + 3, end, byte, 16);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return byte;
}

std::string ByteToken(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace expertflow
