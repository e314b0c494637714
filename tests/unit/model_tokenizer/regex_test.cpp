#include "model/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/tokenizer/regex_syntax.h"

namespace expertflow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  std::vector<Regex::Match> matches;
  if (regex.ok()) {
    const Status found = regex->FindAll(text, &matches);
    EXPECT_TRUE(found.ok()) << found.message();
  }
  std::vector<std::string> texts;
  for (const auto& match : matches) {
    texts.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return texts;
}

TEST(RegexTest, FindsAllFromLeftToRight) {
  EXPECT_THAT(Matches("a+", "aa b a"), ElementsAre("aa", "a"));
  EXPECT_THAT(Matches("a+", ""), ElementsAre());
  // The empty match after "b" is at the end of a match and does not count.
  EXPECT_THAT(Matches("b*", "abc"), ElementsAre("", "b", ""));
  EXPECT_THAT(Matches("x*", "é世"), ElementsAre("", "", ""));
}

TEST(RegexTest, WhiteSpaceIsTheUnicodeProperty) {
  EXPECT_THAT(Matches(R"(\s)", "\u00a0\u0085\u3000\u2028x\u180e"),
              ElementsAre("\u00a0", "\u0085", "\u3000", "\u2028"));
  EXPECT_THAT(Matches(R"([^\sx])", "\u180ex "), ElementsAre("\u180e"));
  EXPECT_THAT(Matches(R"(\S)", "\u180e \u00a0"), ElementsAre("\u180e"));
  EXPECT_THAT(Matches(R"([\Sb])", "\u180e \u00a0"), ElementsAre("\u180e"));
}

TEST(RegexTest, WordsDigitsAndProperties) {
  EXPECT_THAT(Matches(R"(\w+)", "e\u0301_1 \u00bd"), ElementsAre("e\u0301_1", "\u00bd"));
  EXPECT_THAT(Matches(R"([\w]+)", "e\u0301_1 \u00bd"), ElementsAre("e\u0301_1"));
  EXPECT_THAT(Matches(R"(\bé\b)", "é éa é"), ElementsAre("é", "é"));
  EXPECT_THAT(Matches(R"(\d)", "1\u0661\u00bd"), ElementsAre("1", "\u0661"));
  EXPECT_THAT(Matches(R"(\h+)", "xbeefy "), ElementsAre("beef"));
  EXPECT_THAT(Matches(R"(\p{Han}+)", "漢字かな\u3001"), ElementsAre("漢字"));
  EXPECT_THAT(Matches(R"([\u4e00-\u9fa5]+|\x{41})", "a漢A"), ElementsAre("漢", "A"));
}

TEST(RegexTest, CaseFoldingIsUnicode) {
  EXPECT_THAT(Matches("(?i:'s|é)", "'S'\u017f\u00c9"), ElementsAre("'S", "'\u017f", "\u00c9"));
}

TEST(RegexTest, LinesAndIntervals) {
  EXPECT_THAT(Matches("^a|b$", "a\nab\n"), ElementsAre("a", "a", "b"));
  EXPECT_THAT(Matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("a{x", "a{x"), ElementsAre("a{x"));
  EXPECT_THAT(Matches("[]a]+", "a]b"), ElementsAre("a]"));
}

TEST(RegexTest, WhatMeansSomethingElseIsRefusedByName) {
  for (const auto& [pattern, message] : std::vector<std::pair<std::string, std::string>>{
           {"[a[b]]", "a class inside a class"},
           {"[a&&b]", "'&&'"},
           {"a{1,2}+", "'+' after an interval"},
           {"(?m)a", "the group '(?m)'"},
           {"a(?i)b", "the group '(?i)'"},
           {"(?<n>a)", "the group '(?<n'"},
           {"(?R)", "the group '(?R)'"},
           {"(*UTF)a", "'(*'"},
           {"\\1", "'\\1'"},
           {"\\Qa\\E", "'\\Q'"},
           {"[\\W]", "'\\W' in a class"},
           {"\\p{Nonsense}", "unknown property"},
           {"[a", "without end"},
           {"a\\", "backslash at its end"},
           {"\\u12", "four hexadecimal digits"},
       }) {
    const auto regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_THAT(regex.status().message(), HasSubstr(message)) << pattern;
  }
}

TEST(RegexTest, LiteralsAreNotPatterns) {
  const auto regex = Regex::Literal("a.b");
  ASSERT_TRUE(regex.ok()) << regex.status().message();
  std::vector<Regex::Match> matches;
  ASSERT_TRUE(regex->FindAll("axb a.b", &matches).ok());
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].begin, 4u);
}

}  // namespace
}  // namespace expertflow
