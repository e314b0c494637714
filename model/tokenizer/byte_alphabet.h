// The byte-level alphabet: vocabularies are written with one printable character for each byte.
// Bytes that print in Latin-1 stand for themselves, the other 68 are U+0100, U+0101, ... in byte
// order (as GPT-2 has it), so that "Ġ" is a space.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace expertflow {

// The character for `byte`, in UTF-8. Valid for ever.
std::string_view ByteCharacter(uint8_t byte);

// Appends the bytes that `content` spells. A token with a character outside the alphabet (an added
// token with a space, say) stands for its own UTF-8 bytes.
void AppendSpelledBytes(std::string_view content, std::string* out);

// The byte of a byte-fallback token, "<0x0A>"; nothing for other tokens.
std::optional<uint8_t> ByteOfToken(std::string_view content);
std::string ByteToken(uint8_t byte);

}  // namespace expertflow
