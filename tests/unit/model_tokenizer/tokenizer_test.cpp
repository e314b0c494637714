#include "model/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "model/tokenizer/nfc.h"
#include "tests/unit/model_tokenizer/small_tokenizer.h"

namespace expertflow {
namespace {

using nlohmann::json;

std::unique_ptr<Tokenizer> MakeTokenizer(const json& definition) {
  auto tokenizer = Tokenizer::Parse(definition.dump(), "small.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.Encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

json WithAddedToken(const json& token) {
  json definition = SmallTokenizerJson();
  definition["added_tokens"].push_back(token);
  return definition;
}

TEST(TokenizerTest, MergesByRank) {
  const auto tokenizer = MakeTokenizer(SmallTokenizerJson());
  EXPECT_EQ(Encode(*tokenizer, "the the"), (std::vector<int32_t>{'t', 257, 258}));
  EXPECT_EQ(Encode(*tokenizer, ""), std::vector<int32_t>());
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_EQ(tokenizer->TokenToId("Ġthe"), 258);
  EXPECT_EQ(tokenizer->TokenToId("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenBytes(258), " the");
  EXPECT_EQ(tokenizer->TokenBytes(280), "");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(1 << 30), "");
}

TEST(TokenizerTest, SpecialTokensInTextAreFoundAndCanBeLeftOut) {
  const auto tokenizer = MakeTokenizer(SmallTokenizerJson());
  const auto ids = Encode(*tokenizer, "a<|end|><|end|>b<|end");
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 300, 300, 'b', '<', '|', 'e', 'n', 'd'}));
  EXPECT_EQ(tokenizer->Decode(ids, false), "a<|end|><|end|>b<|end");
  EXPECT_EQ(tokenizer->Decode(ids, true), "ab<|end");
  EXPECT_TRUE(tokenizer->IsSpecial(300));
  EXPECT_FALSE(tokenizer->IsSpecial(299));
}

TEST(TokenizerTest, TheLongestAddedTokenWins) {
  const auto tokenizer =
      MakeTokenizer(WithAddedToken({{"id", 301}, {"content", "<|end|>>"}, {"special", true}}));
  EXPECT_EQ(Encode(*tokenizer, "<|end|>><|end|>"), (std::vector<int32_t>{301, 300}));
}

TEST(TokenizerTest, StripsWhiteSpaceAroundAnAddedToken) {
  const auto tokenizer = MakeTokenizer(WithAddedToken(
      {{"id", 301}, {"content", "<m>"}, {"special", true}, {"lstrip", true}, {"rstrip", true}}));
  EXPECT_EQ(Encode(*tokenizer, "a \t\u3000<m> \n<m>  b"),
            (std::vector<int32_t>{'a', 301, 301, 'b'}));
}

TEST(TokenizerTest, SingleWordTokensStandAlone) {
  const auto tokenizer = MakeTokenizer(
      WithAddedToken({{"id", 301}, {"content", "xy"}, {"special", true}, {"single_word", true}}));
  EXPECT_EQ(Encode(*tokenizer, "xy"), (std::vector<int32_t>{301}));
  EXPECT_EQ(Encode(*tokenizer, "axy"), (std::vector<int32_t>{'a', 'x', 'y'}));
  EXPECT_EQ(Encode(*tokenizer, "xy_"), (std::vector<int32_t>{'x', 'y', '_'}));
  EXPECT_EQ(Encode(*tokenizer, "xy,xy"), (std::vector<int32_t>{301, ',', 301}));
}

TEST(TokenizerTest, NormalizedTokensAreFoundInNormalizedText) {
  const json token = {{"id", 301}, {"content", "caf\u00e9"}, {"normalized", true}};
  const auto tokenizer = MakeTokenizer(WithAddedToken(token));
  EXPECT_EQ(Encode(*tokenizer, "cafe\u0301"), (std::vector<int32_t>{301}));
  json verbatim = token;
  verbatim["normalized"] = false;
  EXPECT_EQ(Encode(*MakeTokenizer(WithAddedToken(verbatim)), "cafe\u0301").size(), 5u);
}

TEST(TokenizerTest, AddPrefixSpace) {
  json definition = SmallTokenizerJson();
  definition["pre_tokenizer"]["add_prefix_space"] = true;
  const auto tokenizer = MakeTokenizer(definition);
  EXPECT_EQ(Encode(*tokenizer, "the"), (std::vector<int32_t>{258}));
  EXPECT_EQ(Encode(*tokenizer, " the"), (std::vector<int32_t>{258}));
  EXPECT_EQ(Encode(*tokenizer, ""), std::vector<int32_t>());
}

TEST(TokenizerTest, IgnoreMergesTakesWholeTokens) {
  json definition = SmallTokenizerJson();
  definition["model"]["vocab"]["the"] = 259;
  EXPECT_EQ(Encode(*MakeTokenizer(definition), "the"), (std::vector<int32_t>{'t', 257}));
  definition["model"]["ignore_merges"] = true;
  EXPECT_EQ(Encode(*MakeTokenizer(definition), "the"), (std::vector<int32_t>{259}));
}

TEST(TokenizerTest, SplitBehaviors) {
  json definition = SmallTokenizerJson();
  definition["model"]["vocab"]["a-"] = 301;
  definition["model"]["vocab"]["-b"] = 302;
  definition["model"]["vocab"]["--"] = 303;
  definition["model"]["merges"] = {"a -", "- b", "- -"};
  const auto encode = [&](const char* behavior, bool invert) {
    const json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    definition["pre_tokenizer"] = {{"type", "Sequence"},
                                   {"pretokenizers",
                                    {{{"type", "Split"},
                                      {"pattern", {{"String", "-"}}},
                                      {"behavior", behavior},
                                      {"invert", invert}},
                                     byte_level}}};
    return Encode(*MakeTokenizer(definition), "a--b");
  };
  EXPECT_EQ(encode("Isolated", false), (std::vector<int32_t>{'a', '-', '-', 'b'}));
  EXPECT_EQ(encode("Removed", false), (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(encode("Removed", true), (std::vector<int32_t>{'-', '-'}));
  EXPECT_EQ(encode("MergedWithPrevious", false), (std::vector<int32_t>{301, '-', 'b'}));
  EXPECT_EQ(encode("MergedWithNext", false), (std::vector<int32_t>{'a', '-', 302}));
  EXPECT_EQ(encode("Contiguous", false), (std::vector<int32_t>{'a', 303, 'b'}));
}

TEST(TokenizerTest, BrokenTextIsReadWithReplacementCharacters) {
  const auto tokenizer = MakeTokenizer(SmallTokenizerJson());
  for (const std::string text : {"\xff", "a\xc3", "\xed\xa0\x80", "\xf0\x9f\x98", "\x80\x80"}) {
    const auto ids = Encode(*tokenizer, text);
    const std::string decoded = tokenizer->Decode(ids, false);
    EXPECT_NE(decoded.find("\xEF\xBF\xBD"), std::string::npos);
    EXPECT_EQ(Encode(*tokenizer, decoded), ids);
  }
}

TEST(TokenizerTest, AByteWithoutATokenIsAnError) {
  json definition = SmallTokenizerJson();
  definition["model"]["vocab"].erase("z");
  const auto ids = MakeTokenizer(definition)->Encode("fizz");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().message(),
            "small.json: the text has byte 0x7A, and the vocabulary has no token 'z' for it: this "
            "tokenizer cannot encode the text");
}

TEST(TokenizerTest, RoundTripOfEveryPlane) {
  const auto tokenizer = MakeTokenizer(SmallTokenizerJson());
  const std::string text = "Grüße, 世界! 👩‍👩‍👧 \U0010FFFD the\r\n\t x\u00a0";
  EXPECT_EQ(tokenizer->Decode(Encode(*tokenizer, text), false), text);
}

TEST(TokenizerTest, AMegabyteWordFinishes) {
  const auto tokenizer = Tokenizer::Load(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  uint32_t state = 1;
  std::string random;
  std::string marks = "a";
  for (int i = 0; i < 1 << 20; ++i) {
    state = state * 1664525 + 1013904223;
    random += static_cast<char>('a' + (state >> 24) % 26);
    if (i % 4 == 0) marks += "\u0301\u0323";
  }
  for (const std::string& text :
       {std::string(1 << 20, 'a'), std::string(1 << 20, ' ') + "x", random, marks}) {
    const std::string decoded = (*tokenizer)->Decode(Encode(**tokenizer, text), false);
    const auto normalized = NormalizeNfc(text);
    ASSERT_TRUE(normalized.ok()) << normalized.status().message();
    EXPECT_TRUE(decoded == *normalized);
  }
}

TEST(TokenizerTest, AHopelessRegexGivesUpWithAnError) {
  json definition = SmallTokenizerJson();
  definition["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a|aa)+(?!a|x)$"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto ids = MakeTokenizer(definition)->Encode(std::string(200, 'a') + "x");
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.status().message().find("gives up on this text"), std::string::npos);
}

TEST(TokenizerTest, ThreadsShareOne) {
  const auto tokenizer = MakeTokenizer(SmallTokenizerJson());
  const auto expected = Encode(*tokenizer, "the cat <|end|> caf\u00e9");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(Encode(*tokenizer, "the cat <|end|> caf\u00e9"), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace expertflow
