// What a tokenizer.json may not say; each error names the file and the thing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "model/tokenizer/tokenizer.h"
#include "tests/unit/model_tokenizer/small_tokenizer.h"

namespace expertflow {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

std::string ErrorOf(std::string_view text) {
  const auto tokenizer = Tokenizer::Parse(text, "bad.json");
  if (tokenizer.ok()) return "accepted";
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(tokenizer.status().message(), StartsWith("bad.json: "));
  EXPECT_EQ(tokenizer.status().message().find('\n'), std::string::npos);
  return tokenizer.status().message();
}

// The error after putting `value` at `pointer` of the small tokenizer.
std::string ErrorWith(const char* pointer, const json& value) {
  json definition = SmallTokenizerJson();
  definition[json::json_pointer(pointer)] = value;
  return ErrorOf(definition.dump());
}

TEST(TokenizerJsonTest, NotJson) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("not usable JSON"));
  EXPECT_THAT(ErrorOf("{\"model\": "), HasSubstr("not usable JSON"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("must hold a JSON object, found an array"));
  EXPECT_THAT(ErrorOf(std::string(100, '[') + std::string(100, ']')), HasSubstr("too deep"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("pre_tokenizer without ByteLevel is not supported"));
}

TEST(TokenizerJsonTest, MissingFile) {
  const auto tokenizer = Tokenizer::Load("/nowhere/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("/nowhere/tokenizer.json"));
}

TEST(TokenizerJsonTest, OtherKindsAreRefusedByName) {
  EXPECT_THAT(ErrorWith("/model/type", "Unigram"), HasSubstr("model.type 'Unigram'"));
  EXPECT_THAT(ErrorWith("/model/type", "WordPiece"), HasSubstr("model.type 'WordPiece'"));
  EXPECT_THAT(ErrorWith("/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(ErrorWith("/model/byte_fallback", true),
              HasSubstr("pre_tokenizer 'ByteLevel' is not supported, only Split and Metaspace"));
  EXPECT_THAT(ErrorWith("/model/continuing_subword_prefix", "##"),
              HasSubstr("model.continuing_subword_prefix '##'"));
  EXPECT_THAT(ErrorWith("/model/end_of_word_suffix", "</w>"),
              HasSubstr("model.end_of_word_suffix '</w>'"));
  EXPECT_THAT(ErrorWith("/normalizer", {{"type", "NFKC"}}), HasSubstr("normalizer 'NFKC'"));
  EXPECT_THAT(ErrorWith("/pre_tokenizer", {{"type", "Metaspace"}}),
              HasSubstr("pre_tokenizer 'Metaspace'"));
  EXPECT_THAT(ErrorWith("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder 'WordPiece'"));
  EXPECT_THAT(ErrorWith("/decoder", nullptr), HasSubstr("decoder with 0 parts"));
  EXPECT_THAT(ErrorWith("/post_processor", {{"type", "BertProcessing"}}),
              HasSubstr("post_processor 'BertProcessing'"));
}

TEST(TokenizerJsonTest, AnUnknownTokenIsRefusedWhereItCouldAppear) {
  json definition = SmallTokenizerJson();
  definition["model"]["unk_token"] = "<|end|>";
  EXPECT_EQ(ErrorOf(definition.dump()), "accepted");
  definition["model"]["vocab"].erase("z");
  EXPECT_THAT(ErrorOf(definition.dump()), HasSubstr("model.unk_token '<|end|>'"));
}

TEST(TokenizerJsonTest, Ids) {
  EXPECT_THAT(ErrorWith("/model/vocab/a", -1), HasSubstr("token 'a' has id -1"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", 1.5), HasSubstr("the id of token 'a'"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", (1 << 24) + 1), HasSubstr("token 'a' has id 16777217"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", 1ULL << 40), HasSubstr("token 'a' has id"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", ~0ULL), HasSubstr("the id of token 'a'"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", "7"), HasSubstr("the id of token 'a'"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", 98), HasSubstr("id 98 has two tokens, 'a' and 'b'"));
}

TEST(TokenizerJsonTest, AddedTokens) {
  EXPECT_THAT(ErrorWith("/added_tokens/0/id", 5),
              HasSubstr("added_tokens[0]: id 5 has two tokens"));
  EXPECT_THAT(ErrorWith("/added_tokens/0/content", "he"),
              HasSubstr("added_tokens[0]: token 'he' has two ids, 257 and 300"));
  EXPECT_THAT(ErrorWith("/added_tokens/0/id", -5), HasSubstr("added_tokens[0].id is -5"));
  EXPECT_THAT(ErrorWith("/added_tokens/0/id", "5"),
              HasSubstr("added_tokens[0].id must be an integer, found a string"));
  EXPECT_THAT(ErrorWith("/added_tokens/0/content", ""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(ErrorWith("/added_tokens/0/content", std::string(2000, 'x')),
              HasSubstr("has 2000 bytes, allowed are 1 to 1024"));
  EXPECT_THAT(ErrorWith("/added_tokens/0/special", 1), HasSubstr("must be a boolean"));
  EXPECT_THAT(ErrorWith("/added_tokens", 3), HasSubstr("added_tokens must be an array"));
}

TEST(TokenizerJsonTest, Merges) {
  EXPECT_THAT(ErrorWith("/model/merges/0", "a"), HasSubstr("model.merges[0] must be two tokens"));
  EXPECT_THAT(ErrorWith("/model/merges/1", "a b c"), HasSubstr("model.merges[1] must be two"));
  EXPECT_THAT(ErrorWith("/model/merges/1", {"a"}), HasSubstr("model.merges[1] must be two"));
  EXPECT_THAT(ErrorWith("/model/merges/1", 4), HasSubstr("model.merges[1] must be two"));
  EXPECT_THAT(ErrorWith("/model/merges/0", "no b"), HasSubstr("token 'no' is not in model.vocab"));
  EXPECT_THAT(ErrorWith("/model/merges/0", "a b"), HasSubstr("token 'ab' is not in model.vocab"));
  EXPECT_THAT(ErrorWith("/model/merges", json::object()),
              HasSubstr("model.merges must be an array"));
  EXPECT_EQ(ErrorWith("/model/merges/1", {"h", "e"}), "accepted");
}

TEST(TokenizerJsonTest, WrongTypesEverywhere) {
  // Each leaf and each branch of a whole file, replaced by every other type: an error or a
  // tokenizer, never a crash.
  const json whole = SmallTokenizerJson();
  const json values[] = {nullptr, true, -1, 1e300, "", json::array(), json::object(), {1, 2}};
  const json flat = whole.flatten();
  for (const auto& leaf : flat.items()) {
    for (std::string pointer = leaf.key(); !pointer.empty(); pointer.resize(pointer.rfind('/'))) {
      if (pointer.starts_with("/model/vocab/") && pointer != "/model/vocab/a") continue;
      for (const json& value : values) {
        json changed = whole;
        changed[json::json_pointer(pointer)] = value;
        const auto tokenizer = Tokenizer::Parse(changed.dump(), "bad.json");
        if (tokenizer.ok()) static_cast<void>((*tokenizer)->Encode("the <|end|>").ok());
      }
    }
  }
}

TEST(TokenizerJsonTest, SplitsAreChecked) {
  const auto error = [](json split) {
    split["type"] = "Split";
    return ErrorWith("/pre_tokenizer",
                     {{"type", "Sequence"}, {"pretokenizers", {split, {{"type", "ByteLevel"}}}}});
  };
  const std::string where = "pre_tokenizer.pretokenizers[0]";
  EXPECT_EQ(error({{"pattern", {{"Regex", "a+"}}}, {"behavior", "Isolated"}}), "accepted");
  EXPECT_THAT(error({{"pattern", {{"Regex", "a("}}}, {"behavior", "Isolated"}}),
              HasSubstr(where + ".pattern: cannot use regex 'a('"));
  EXPECT_THAT(error({{"pattern", {{"Regex", "a+"}}}, {"behavior", "Other"}}),
              HasSubstr(where + ".behavior 'Other' is not supported"));
  EXPECT_THAT(error({{"pattern", {{"Regex", "a+"}}}}), HasSubstr(where + ".behavior is missing"));
  EXPECT_THAT(error({{"pattern", "a+"}}), HasSubstr(where + ".pattern must be an object"));
  EXPECT_THAT(error({{"pattern", {{"String", ""}}}}),
              HasSubstr(where + ".pattern.String is empty"));
  EXPECT_THAT(error({{"pattern", json::object()}}), HasSubstr("must have Regex or String"));
}

TEST(TokenizerJsonTest, ByteLevelComesLast) {
  const json byte_level = {{"type", "ByteLevel"}};
  EXPECT_THAT(ErrorWith("/pre_tokenizer",
                        {{"type", "Sequence"}, {"pretokenizers", {byte_level, byte_level}}}),
              HasSubstr("'ByteLevel' must be the last pre-tokenizer"));
}

}  // namespace
}  // namespace expertflow
