#include "model/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/nfc.h"

namespace expertflow {
namespace {

std::string Lossy(std::string_view bytes) {
  std::string text;
  AppendLossyUtf8(bytes, &text);
  return text;
}

TEST(Utf8Test, MaximalSubpartsAreReplaced) {
  // The example of the Unicode standard, section 3.9, table 3-8 and following.
  EXPECT_EQ(Lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(Lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(Lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(Lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

TEST(Utf8Test, CutIsNotBroken) {
  EXPECT_EQ(NextUtf8("\xF0\x9F\x98").kind, Utf8Kind::kCut);
  EXPECT_EQ(NextUtf8("\xF0\x9F\x98").bytes, 3);
  EXPECT_EQ(NextUtf8("\xF0\x9F x").kind, Utf8Kind::kBroken);
  EXPECT_EQ(NextUtf8("\xF0\x9F x").bytes, 2);
  EXPECT_EQ(NextUtf8("\xF5").kind, Utf8Kind::kBroken);
  EXPECT_EQ(NextUtf8("😀").code_point, 0x1F600u);
}

TEST(Utf8Test, AsciiAtEveryLength) {
  for (size_t length = 0; length < 20; ++length) {
    std::string text(length, 'a');
    EXPECT_TRUE(IsAscii(text));
    for (size_t i = 0; i < length; ++i) {
      text[i] = '\x80';
      EXPECT_FALSE(IsAscii(text));
      text[i] = 'a';
    }
  }
}

TEST(NfcTest, ComposesAndOrdersMarks) {
  const auto nfc = [](std::string_view text) {
    const auto normalized = NormalizeNfc(text);
    EXPECT_TRUE(normalized.ok());
    return normalized.ok() ? *normalized : "";
  };
  EXPECT_EQ(nfc("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(nfc("a\u0301\u0323"), "\u1ea1\u0301");
  EXPECT_EQ(nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(nfc("\u212b\u2126"), "\u00c5\u03a9");
  // Excluded from composition, and a compatibility character that stays.
  EXPECT_EQ(nfc("\u0958\ufb01"), "\u0915\u093c\ufb01");
  EXPECT_EQ(nfc(std::string_view("a\0b", 3)), std::string("a\0b", 3));
}

TEST(ByteAlphabetTest, EveryByteIsSpelledAndReadBack) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    AppendSpelledBytes(ByteCharacter(static_cast<uint8_t>(byte)), &spelled);
    EXPECT_EQ(spelled, std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(ByteCharacter(' '), "Ġ");
  EXPECT_EQ(ByteCharacter('\n'), "Ċ");
  EXPECT_EQ(ByteCharacter('A'), "A");
}

TEST(ByteAlphabetTest, FIELD_71_ContentOutsideTheAlphabetIsItself) {
  std::string spelled;
  AppendSpelledBytes("\u2581The", &spelled);
  AppendSpelledBytes("<a b>", &spelled);
  EXPECT_EQ(spelled, "\u2581The<a b>");
}

}  // namespace
}  // namespace expertflow
