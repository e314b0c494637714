#include "model/grammar/pattern_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "model/grammar/grammar_automaton.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

// Whether what stands between the quotes of a JSON string is allowed.
class Strings {
 public:
  explicit Strings(const std::string& pattern) : automaton_(Make(pattern)) {}

  bool Allow(const std::string& json) {
    GrammarAutomaton::StateId state = automaton_.start();
    for (const char c : json) {
      state = automaton_.Advance(state, static_cast<uint8_t>(c));
      if (state == GrammarAutomaton::kDead) return false;
    }
    return automaton_.Accepts(state);
  }

 private:
  static Grammar Make(const std::string& pattern) {
    Grammar grammar;
    const auto root = StringMatching(pattern, &grammar, grammar.Return());
    EXPECT_TRUE(root.ok()) << pattern << ": " << root.status().message();
    if (root.ok()) grammar.SetRoot(*root);
    EXPECT_TRUE(grammar.CheckRecursion().ok()) << pattern;
    return grammar;
  }
  GrammarAutomaton automaton_;
};

TEST(PatternGrammar, MatchesWhatRegularExpressionsOfEcmaMatch) {
  const char* patterns[] = {
      "^a+$",          "ab",         "^(ab|c)*d?$", "^[a-c]{2,3}$",  "^[^ab]+$", "^a.c$",
      "^\\d\\w\\s$",   "a$",         "^b",          "^(?:a|bc){2}d", "^a{2,}$",  "^(a|b|ab)c$",
      "^a*?b+?$",      "^[\\d_-]+$", "^$|^a$",      "^\\W\\D\\S$",   "^a{0}b$",  "^[a\\]]+$",
      "^\\x61\\u0062$"};
  std::mt19937 random(1);
  const std::string letters = "abcd1 _-]";
  for (const char* pattern : patterns) {
    Strings strings(pattern);
    const std::regex expected(pattern, std::regex::ECMAScript);
    for (int i = 0; i < 3000; ++i) {
      std::string text(random() % 6, ' ');
      for (char& c : text) c = letters[random() % letters.size()];
      EXPECT_EQ(strings.Allow(text), std::regex_search(text, expected)) << pattern << ": " << text;
    }
  }
}

TEST(PatternGrammar, CharactersAreWrittenAsJsonWritesThem) {
  Strings quotes(R"(^["\\\n\t]+$)");
  EXPECT_TRUE(quotes.Allow(R"(\"\\\n\t)"));
  EXPECT_FALSE(quotes.Allow("\""));
  EXPECT_FALSE(quotes.Allow("\\"));
  EXPECT_FALSE(quotes.Allow("\n"));
  Strings control("^[\\x00-\\x1f]$");
  EXPECT_TRUE(control.Allow("\\u0001"));
  EXPECT_TRUE(control.Allow("\\b"));
  EXPECT_FALSE(control.Allow("\\u0020"));
}

// One character of each length of UTF-8 at both ends of a range, and their neighbours.
TEST(PatternGrammar, RangesOfUtf8) {
  Strings range("^[\xC3\xA9-\xF0\x9F\x98\x80]$");  // U+00E9 to U+1F600
  for (const char* inside :
       {"\xC3\xA9", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF0\x90\x81\xBF", "\xF0\x9F\x97\xBF", "\xF0\x9F\x98\x80"}) {
    EXPECT_TRUE(range.Allow(inside)) << inside;
  }
  for (const char* outside : {"\xC3\xA8", "\xED\xA0\x80", "\xF0\x9F\x98\x81", "\xC0\x80", "a"}) {
    EXPECT_FALSE(range.Allow(outside)) << outside;
  }
  Strings any("^.$");
  for (const char* one : {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF4\x8F\xBF\xBF", "\\\""}) {
    EXPECT_TRUE(any.Allow(one)) << one;
  }
  for (const char* none : {"", "ab", "\\n", "\xF4\x90\x80\x80", "\xE2\x80\xA8"}) {
    EXPECT_FALSE(any.Allow(none)) << none;
  }
}

TEST(PatternGrammar, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"(?=a)", "look-around"}, {"(?<!a)b", "look-around"}, {"a\\b", "\\b is not supported"},
      {"(a)\\1", "\\1"},        {"\\p{L}", "\\p"},          {"a^b", "^ and $"},
      {"(^a)", "^ and $"},      {"(a", "without its )"},    {"a)", "without its ("},
      {"[a", "without its ]"},  {"*a", "nothing before *"}, {"a**", "nothing before *"},
      {"(a*)*", "empty"},       {"a{3,2}", "n below m"},    {"a{9999}", "repetitions"},
      {"[b-a]", "range"},       {"[\\d-z]", "range"},       {"\\x1", "hexadecimal"},
      {"a\\", "ends with"}};
  for (const auto& [pattern, message] : cases) {
    Grammar grammar;
    const auto root = StringMatching(pattern, &grammar, grammar.Return());
    ASSERT_FALSE(root.ok()) << pattern;
    EXPECT_THAT(std::string(root.status().message()), HasSubstr(message)) << pattern;
  }
  Grammar grammar;
  const std::string deep = std::string(1000, '(') + std::string(1000, ')');
  EXPECT_FALSE(StringMatching(deep, &grammar, grammar.Return()).ok());
  // Too large: told by the grammar.
  (void)StringMatching("^((a{4000}){4000}){4000}$", &grammar, grammar.Return());
  EXPECT_TRUE(grammar.full());
}

TEST(PatternGrammar, Formats) {
  const struct {
    const char* format;
    std::vector<const char*> good;
    std::vector<const char*> bad;
  } cases[] = {
      {"date",
       {"2024-12-31", "1999-02-28"},
       {"2024-02-30", "2024-13-01", "2024-1-1", "2024-06-31"}},
      {"time", {"23:59:59Z", "00:00:00.25+01:30"}, {"24:00:00Z", "12:00:00"}},
      {"date-time", {"2024-01-01T00:00:00Z"}, {"2024-01-01 00:00:00Z"}},
      {"duration", {"P3D", "PT1H30M", "P1Y2M3D", "PT5S", "P2W"}, {"P", "PT", "P1H", "3D"}},
      {"email", {"a.b+c@example.org"}, {"a@", "@b.c", "a b@c.d", "a..b@c.d"}},
      {"hostname", {"a.example.org"}, {"-a.b", "a..b", "a."}},
      {"ipv4", {"0.0.0.0", "255.249.100.9"}, {"256.0.0.0", "1.2.3", "01.2.3.4"}},
      {"ipv6", {"0:0:0:0:0:0:0:1", "2001:db8:0:0:8:800:200c:417a"}, {"1:2:3", "g:0:0:0:0:0:0:1"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"}}};
  for (const auto& test : cases) {
    Strings strings(PatternOfFormat(test.format));
    for (const char* text : test.good) EXPECT_TRUE(strings.Allow(text)) << text;
    for (const char* text : test.bad) EXPECT_FALSE(strings.Allow(text)) << text;
  }
  EXPECT_EQ(PatternOfFormat("uri"), "");
}

}  // namespace
}  // namespace expertflow
