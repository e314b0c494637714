// Vocabularies of text with byte fallback, as converted from SentencePiece.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/stream_decoder.h"

namespace expertflow {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// <unk> 0, <s> 1, the bytes 3 to 258, then ▁ 259, a 260, b 261, ab 262, ▁a 263, ▁ab 264.
json TextTokenizer() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[ByteToken(static_cast<uint8_t>(byte))] = 3 + byte;
  int id = 259;
  for (const char* token : {"▁", "a", "b", "ab", "▁a", "▁ab"}) vocab[token] = id++;
  return {{"added_tokens", {{{"id", 1}, {"content", "<s>"}, {"special", true}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"a b", "▁ a", "▁ ab"}}}}};
}

std::unique_ptr<Tokenizer> MustParse(const json& file) {
  auto tokenizer = Tokenizer::Parse(file.dump(), "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.Encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

TEST(TextTokenizer, MergesCharactersAndFallsBackToBytes) {
  const auto tokenizer = MustParse(TextTokenizer());
  EXPECT_THAT(Ids(*tokenizer, ""), ElementsAre());
  EXPECT_THAT(Ids(*tokenizer, "ab"), ElementsAre(264));
  EXPECT_THAT(Ids(*tokenizer, "ab ab"), ElementsAre(264, 264));
  EXPECT_THAT(Ids(*tokenizer, " b"), ElementsAre(259, 259, 261));
  EXPECT_THAT(Ids(*tokenizer, "aé\n"), ElementsAre(263, 3 + 0xC3, 3 + 0xA9, 3 + 0x0A));
  EXPECT_THAT(Ids(*tokenizer, "<s>a"), ElementsAre(1, 263));  // each part gets its prefix
}

TEST(TextTokenizer, DecodesBytesAndDropsTheFirstSpace) {
  const auto tokenizer = MustParse(TextTokenizer());
  for (const std::string text : {"ab ab", " b", "a  é\n😀", ""}) {
    const auto ids = Ids(*tokenizer, text);
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
    StreamDecoder decoder(*tokenizer, false);
    for (int round = 0; round < 2; ++round) {
      std::string streamed;
      for (const int32_t id : ids) streamed += decoder.Push(id);
      EXPECT_EQ(streamed + decoder.Flush(), text);
    }
  }
  EXPECT_EQ(tokenizer->TokenBytes(264), " ab");
  EXPECT_EQ(tokenizer->TokenBytes(3 + 0xC3), "\xC3");
}

TEST(TextTokenizer, CharactersWithoutBytesAreUnknownAndFused) {
  json file = TextTokenizer();
  file["model"]["vocab"].erase("<0xC3>");
  EXPECT_THAT(Ids(*MustParse(file), "aééb"), ElementsAre(263, 0, 261));
  file["model"]["fuse_unk"] = false;
  EXPECT_THAT(Ids(*MustParse(file), "aééb"), ElementsAre(263, 0, 0, 261));
  file["model"]["unk_token"] = nullptr;
  const auto refused = MustParse(file)->Encode("é");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("'é'"));
}

TEST(TextTokenizer, MetaspaceInsteadOfANormalizer) {
  json file = TextTokenizer();
  file["normalizer"] = nullptr;
  const auto with = [&](const char* scheme, bool split) {
    file["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
    return MustParse(file);
  };
  EXPECT_THAT(Ids(*with("always", false), "ab<s>ab"), ElementsAre(264, 1, 264));
  EXPECT_THAT(Ids(*with("first", false), "ab<s>ab"), ElementsAre(264, 1, 262));
  EXPECT_THAT(Ids(*with("first", true), "<s>ab"), ElementsAre(1, 262));
  EXPECT_THAT(Ids(*with("never", true), "ab ab"), ElementsAre(262, 264));
  EXPECT_THAT(Ids(*with("always", true), " ab"), ElementsAre(264));
  // Not cut: a merge over the space would be possible.
  file["model"]["vocab"]["b▁"] = 300;
  file["model"]["merges"].insert(file["model"]["merges"].begin(), "b ▁");
  EXPECT_THAT(Ids(*with("never", false), "b b"), ElementsAre(300, 261));
  EXPECT_THAT(Ids(*with("never", true), "b b"), ElementsAre(261, 259, 261));
}

// A long text takes words that come again from a cache, whose places are fewer than the words.
TEST(TextTokenizer, LongTextsGiveWhatTheirWordsGive) {
  const auto small = MustParse(TextTokenizer());
  auto bundled = Tokenizer::Load(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/tokenizer.json");
  ASSERT_TRUE(bundled.ok()) << bundled.status().message();
  std::mt19937 random(5);
  constexpr std::string_view kLetters[] = {"a", "b", "ab", "é", "the", "n", "ing"};
  std::vector<std::string> words(8000);
  for (std::string& word : words) {
    for (uint32_t i = random() % 10 + random() % 3 * 8; i-- > 0;) {
      word += kLetters[random() % std::size(kLetters)];
    }
    word += 'b';  // none is empty
  }
  std::string text;
  std::vector<int32_t> expected, expected_of_bundled;
  for (size_t i = 0; i < 2 * words.size(); ++i) {
    const std::string& word = words[i % words.size()];
    text += (i == 0 ? "" : " ") + word;
    const auto ids = Ids(*small, word);
    expected.insert(expected.end(), ids.begin(), ids.end());
    const auto others = Ids(**bundled, (i == 0 ? "" : " ") + word);
    expected_of_bundled.insert(expected_of_bundled.end(), others.begin(), others.end());
  }
  EXPECT_TRUE(Ids(*small, text) == expected);
  EXPECT_TRUE(Ids(**bundled, text) == expected_of_bundled);
}

TEST(TextTokenizer, WholePiecesWithIgnoreMerges) {
  json file = TextTokenizer();
  file["model"]["merges"] = json::array();
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(Ids(*MustParse(file), "ab"), ElementsAre(264));
  EXPECT_THAT(Ids(*MustParse(file), "b"), ElementsAre(259, 261));
}

TEST(TextTokenizer, PromptsGetWhatTheTemplateSays) {
  json file = TextTokenizer();
  EXPECT_THAT(*MustParse(file)->EncodePrompt("ab"), ElementsAre(264));
  const auto special = [](const char* id) { return json{{"SpecialToken", {{"id", id}}}}; };
  const json text = {{"Sequence", {{"id", "A"}}}};
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {special("<s>"), text, special("end")}},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", {1}}}}, {"end", {{"id", "end"}, {"ids", {2, 0}}}}}}};
  const auto tokenizer = MustParse(file);
  EXPECT_THAT(*tokenizer->EncodePrompt("ab"), ElementsAre(1, 264, 2, 0));
  EXPECT_THAT(*tokenizer->EncodePrompt(""), ElementsAre(1, 2, 0));
  EXPECT_THAT(Ids(*tokenizer, "ab"), ElementsAre(264));

  const auto error = [&](const json& single) {
    json changed = file;
    changed["post_processor"]["single"] = single;
    const auto parsed = Tokenizer::Parse(changed.dump(), "t.json");
    return parsed.ok() ? std::string() : parsed.status().message();
  };
  EXPECT_THAT(error({special("none"), text}), HasSubstr("special_tokens.none is missing"));
  EXPECT_THAT(error({text, text}), HasSubstr("two sequences"));
  EXPECT_THAT(error({3}), HasSubstr("single must be an object"));
}

TEST(TextTokenizer, RefusesByName) {
  const auto error = [](const std::string& pointer, const json& value) {
    json file = TextTokenizer();
    file[json::json_pointer(pointer)] = value;
    const auto tokenizer = Tokenizer::Parse(file.dump(), "t.json");
    return tokenizer.ok() ? std::string() : tokenizer.status().message();
  };
  EXPECT_THAT(error("/normalizer/normalizers/0/type", "Lowercase"), HasSubstr("'Lowercase'"));
  EXPECT_THAT(error("/decoder/decoders/3/type", "Metaspace"), HasSubstr("'Metaspace'"));
  EXPECT_THAT(error("/decoder/decoders/3/stop", 1), HasSubstr("decoder.decoders[3]"));
  EXPECT_THAT(error("/decoder/decoders/3/content", "x"), HasSubstr("decoder.decoders[3]"));
  EXPECT_THAT(error("/decoder", {{"type", "Fuse"}}), HasSubstr("without ByteFallback"));
  EXPECT_THAT(error("/decoder", nullptr), HasSubstr("without ByteFallback"));
  EXPECT_THAT(error("/model/unk_token", "<none>"), HasSubstr("'<none>'"));
  EXPECT_THAT(error("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", ""}}),
              HasSubstr("replacement is empty"));
  EXPECT_THAT(error("/pre_tokenizer",
                    {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}),
              HasSubstr("'last'"));
}

}  // namespace
}  // namespace expertflow
