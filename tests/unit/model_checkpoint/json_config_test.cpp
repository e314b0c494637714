#include "model/checkpoint/json_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_files.h"

namespace expertflow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;

JsonConfig MustParse(std::string_view text) {
  auto config = JsonConfig::Parse(text, "config.json");
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return std::move(config).value();
}

std::string ParseError(std::string_view text) {
  const auto config = JsonConfig::Parse(text, "config.json");
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  return config.status().message();
}

TEST(JsonConfig, ReadsEveryType) {
  const JsonConfig config = MustParse(R"({"i": 7, "n": 1e-6, "whole": 3, "b": true, "s": "silu",
      "list": [1, 2], "one": 5, "names": ["A", "B"], "nothing": null})");
  EXPECT_EQ(*config.Int("i", 0, 10), 7);
  EXPECT_EQ(*config.Number("n", 0, 1), 1e-6);
  EXPECT_EQ(*config.Number("whole", 0, 10), 3.0);
  EXPECT_EQ(*config.Bool("b"), true);
  EXPECT_EQ(*config.String("s"), "silu");
  EXPECT_THAT(*config.IntList("list", 0, 10), ElementsAre(1, 2));
  EXPECT_THAT(*config.IntList("one", 0, 10), ElementsAre(5));
  EXPECT_THAT(*config.IntList("absent", 0, 10), IsEmpty());
  EXPECT_THAT(*config.StringList("names"), ElementsAre("A", "B"));
  EXPECT_FALSE(config.Has("nothing"));
  EXPECT_EQ(*config.IntOr("nothing", 0, 10, 4), 4);
  EXPECT_EQ(*config.NumberOr("absent", 0, 1, 0.5), 0.5);
  EXPECT_EQ(*config.BoolOr("absent", true), true);
  EXPECT_EQ(*config.StringOr("absent", "x"), "x");
  EXPECT_THAT(config.UnreadKeys(), IsEmpty());
}

TEST(JsonConfig, ErrorsNameFileKeyRangeAndValue) {
  const JsonConfig config = MustParse(
      R"({"num_experts": "x", "layers": 5000, "f": 1.5, "big": 99999999999999999999,
          "list": [1, "a"], "object": {}, "names": ["A", 1], "b": 0})");
  const auto experts = config.Int("num_experts", 1, 4096);
  EXPECT_EQ(experts.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(experts.status().message(),
            "config.json: num_experts: expected an integer in [1, 4096], found \"x\"");
  EXPECT_THAT(config.Int("layers", 1, 4096).status().message(), HasSubstr("found 5000"));
  EXPECT_THAT(config.IntOr("layers", 1, 4096, 1).status().message(), HasSubstr("found 5000"));
  EXPECT_FALSE(config.Int("f", 0, 10).ok());
  EXPECT_FALSE(config.Int("big", 0, INT64_MAX).ok());
  EXPECT_THAT(config.Int("absent", 0, 1).status().message(), HasSubstr("found nothing"));
  EXPECT_THAT(config.IntList("list", 0, 9).status().message(), HasSubstr("found \"a\""));
  EXPECT_THAT(config.String("object").status().message(), HasSubstr("found an object"));
  EXPECT_THAT(config.StringList("names").status().message(), HasSubstr("found 1"));
  EXPECT_FALSE(config.Bool("b").ok());
  EXPECT_FALSE(config.Object("list").ok());
  EXPECT_FALSE(config.Number("num_experts", 0, 1).ok());
}

TEST(JsonConfig, FIELD_45_KeysThatNobodyReadAreReported) {
  const JsonConfig config = MustParse(
      R"({"a": 1, "rope_scaling": {"type": "yarn", "factor": 4.0}, "b": 2, "c": null, "d": {"x": 1}})");
  ASSERT_TRUE(config.Int("a", 0, 9).ok());
  EXPECT_THAT(config.UnreadKeys(), ElementsAre("rope_scaling", "b", "d"));
  const auto rope = config.Object("rope_scaling");
  ASSERT_TRUE(rope.ok());
  EXPECT_EQ(*rope->String("type"), "yarn");
  config.Ignore("b");
  config.Ignore("absent");
  EXPECT_THAT(config.UnreadKeys(), ElementsAre("rope_scaling.factor", "d"));
  EXPECT_THAT(rope->UnreadKeys(), ElementsAre("rope_scaling.factor"));
  EXPECT_THAT(rope->Int("factor", 0, 9).status().message(),
              HasSubstr("config.json: rope_scaling.factor: expected"));
}

TEST(JsonConfig, DuplicateKeysAreRefused) {
  EXPECT_THAT(ParseError(R"({"a": 1, "b": 2, "a": 3})"), HasSubstr("a: the key is there twice"));
  EXPECT_THAT(ParseError(R"({"x": {"a": 1, "a": 3}})"), HasSubstr("a: the key is there twice"));
}

TEST(JsonConfig, FIELD_66_BadJsonIsRefusedAtOnce) {
  EXPECT_THAT(ParseError(std::string(900'000, '[')), HasSubstr("deeper than the limit"));
  EXPECT_THAT(ParseError(std::string(2'000'000, ' ')), HasSubstr("limit"));
  EXPECT_THAT(ParseError("{\"a\": "), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(ParseError("{\"a\": NaN}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError("{\"a\": 1e999}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError("\"\xff\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError("[1]"), HasSubstr("expected an object"));
  EXPECT_THAT(ParseError(""), HasSubstr("not valid JSON"));
}

TEST(JsonConfig, LoadsAFileAndKeepsItsText) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("config.json", "{\"a\": 1}\n");
  const auto config = JsonConfig::Load(path);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->text(), "{\"a\": 1}\n");
  EXPECT_THAT(config->Error("a", "no").message(), HasSubstr(path + ": a: no"));
  EXPECT_EQ(JsonConfig::Load(folder.File("none.json")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace expertflow
