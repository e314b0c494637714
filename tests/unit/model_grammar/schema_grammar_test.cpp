#include "model/grammar/schema_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/grammar/grammar_automaton.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

std::string Source(const std::string& schema) {
  return R"({"alternatives":[{"schema":)" + schema + "}]}";
}

enum class Verdict { kNo, kBeginning, kWhole };

class Texts {
 public:
  explicit Texts(const std::string& source) : automaton_(Must(source)) {}

  Verdict Of(const std::string& text) {
    GrammarAutomaton::StateId state = automaton_.start();
    for (const char c : text) {
      state = automaton_.Advance(state, static_cast<uint8_t>(c));
      if (state == GrammarAutomaton::kDead) return Verdict::kNo;
    }
    return automaton_.Accepts(state) ? Verdict::kWhole : Verdict::kBeginning;
  }
  void ExpectWhole(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) EXPECT_EQ(Of(text), Verdict::kWhole) << text;
  }
  void ExpectNo(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) EXPECT_EQ(Of(text), Verdict::kNo) << text;
  }

 private:
  static Grammar Must(const std::string& source) {
    Result<Grammar> grammar = ParseGrammar(source);
    EXPECT_TRUE(grammar.ok()) << grammar.status().ToString();
    return std::move(*grammar);
  }
  GrammarAutomaton automaton_;
};

TEST(SchemaGrammar, AnyValueIsJson) {
  Texts texts(Source("true"));
  texts.ExpectWhole({"0", "-1.5e+10", "1E5", "true", "null", "\"\"", "[]", "{}", "[1, 2]",
                     "{\"a\":{\"b\":[null,\"x\"]}}", "{\n  \"a\": 1\n}",
                     R"("\"\\\/\b\u00e9\ud700")", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""});
  texts.ExpectNo({"01", "+1", ".5", "1.e5", "tru e", "'a'", "[1,]", "{\"a\"}", "{a:1}",
                  "{\"a\":1,}", " 1", "[  1]", "\"\n\"", "\"\\x\"", "\"\\ud800\"", "nul1", "[1}",
                  "1e123"});
  // Ill-formed UTF-8: overlong, half a surrogate pair, beyond the last character.
  texts.ExpectNo({"\"\xC0\x80", "\"\xE0\x80", "\"\xED\xA0", "\"\xF4\x90", "\"\x80", "\"\xC3\""});
  for (const char* text : {"", "-", "1.", "tr", "[1", "{\"a\":", "\"\xE2\x82", "[1,"}) {
    EXPECT_EQ(texts.Of(text), Verdict::kBeginning) << text;
  }
}

TEST(SchemaGrammar, ObjectsHaveTheirPropertiesInOrder) {
  Texts texts(Source(R"({"type":"object","properties":{"a":{"type":"integer"},
      "b":{"type":"string"},"c":{"type":"boolean"}},"required":["b"],"title":"T"})"));
  texts.ExpectWhole({R"({"b":"x"})", R"({"a":1,"b":"x"})", R"({"a": 1, "b": "x", "c": true})",
                     R"({"b":"","c":false})"});
  texts.ExpectNo({"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x","b")", R"({"b":1)",
                  R"({,"b")", R"({"d")", R"({"a":1.5)"});
  Texts all_optional(Source(R"({"properties":{"a":{},"b":{}}})"));
  all_optional.ExpectWhole({"{}", R"({"a":[]})", R"({"b":1})", R"({"a":1,"b":{}})"});
  all_optional.ExpectNo({R"({"b":1,)", R"({,)"});
  Texts map(Source(R"({"type":"object","additionalProperties":{"type":"null"}})"));
  map.ExpectWhole({"{}", R"({"x":null,"y":null})"});
  map.ExpectNo({R"({"x":1)"});
  Texts nothing(Source(R"({"type":"object","additionalProperties":false})"));
  nothing.ExpectWhole({"{}"});
  nothing.ExpectNo({"{\""});
}

TEST(SchemaGrammar, CountsAreKept) {
  Texts strings(Source(R"({"type":"string","minLength":1,"maxLength":3})"));
  strings.ExpectWhole(
      {"\"a\"", "\"abc\"", "\"\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\"", R"("\n\u0041b")"});
  strings.ExpectNo({"\"\"", "\"abcd"});
  Texts lists(Source(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})"));
  lists.ExpectWhole({"[1,2]", "[1, 2, 3]"});
  lists.ExpectNo({"[]", "[1]", "[1,2,3,"});
  Texts none(Source(R"({"type":"array","maxItems":0})"));
  none.ExpectWhole({"[]", "[ ]"});
  none.ExpectNo({"[1"});
  Texts at_least(Source(R"({"type":"array","minItems":1})"));
  at_least.ExpectWhole({"[[]]", "[1,\"a\",{}]"});
  at_least.ExpectNo({"[]"});
}

TEST(SchemaGrammar, AlternativesLiteralsAndTypes) {
  Texts words(Source(R"({"enum":["red","green",3,null,{"a":[1]}]})"));
  words.ExpectWhole({"\"red\"", "3", "null", R"({"a":[1]})"});
  words.ExpectNo({"\"blue", "4", "red"});
  Texts constant(Source(R"({"const":"a\"b","type":"string"})"));
  constant.ExpectWhole({R"("a\"b")"});
  Texts either(
      Source(R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"null"}}]})"));
  either.ExpectWhole({"5", "[null]"});
  either.ExpectNo({"5.5", "[5"});
  Texts types(Source(R"({"type":["string","null"],"maxLength":1})"));
  types.ExpectWhole({"\"a\"", "null"});
  types.ExpectNo({"\"ab", "1"});
}

TEST(SchemaGrammar, ReferencesMayBeRecursive) {
  Texts tree(Source(R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{
      "name":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},
      "required":["name","children"],"additionalProperties":false}}})"));
  tree.ExpectWhole({R"({"name":"a","children":[]})",
                    R"({"name":"a","children":[{"name":"b","children":[]},)"
                    R"({"name":"c","children":[]}]})"});
  tree.ExpectNo({R"({"name":"a","children":[1)", R"({"name":"a"})"});
  Texts self(Source(R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},
      {"type":"null"}]}},"required":["next"]})"));
  self.ExpectWhole({R"({"next":null})", R"({"next":{"next":{"next":null}}})"});
  self.ExpectNo({R"({"next":{}})"});
}

TEST(SchemaGrammar, PrefixesAndSuffixesChooseAnAlternative) {
  Texts calls(R"({"alternatives":[
      {"prefix":"<call>a:","schema":{"type":"integer"},"suffix":"</call>"},
      {"prefix":"<call>b:","schema":{"type":"null"},"suffix":"</call>"}]})");
  calls.ExpectWhole({"<call>a:12</call>", "<call>b:null</call>"});
  calls.ExpectNo({"<call>a:null", "12", "<call>b:null</call> "});
}

struct Refusal {
  const char* schema;
  const char* message;
};

TEST(SchemaGrammar, WhatIsNotSupportedIsNamedWithItsPlace) {
  const Refusal cases[] = {
      {R"({"type":"string","pattern":"(?=a)b"})", "#: pattern: look-around is not supported"},
      {R"({"type":"string","pattern":"a","minLength":1})", "not supported together with pattern"},
      {R"({"type":"string","format":"uri"})", "format: uri is not supported"},
      {R"({"type":"integer","minimum":"3"})", "minimum: expected a number"},
      {R"({"type":"integer","minimum":3.2,"maximum":3.9})", "no number is within the bounds"},
      {R"({"type":"number","exclusiveMinimum":3,"maximum":3})", "no number is within"},
      {R"({"type":"number","multipleOf":2})", "multipleOf"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","prefixItems":[{}]})", "prefixItems"},
      {R"({"type":"object","patternProperties":{}})", "patternProperties"},
      {R"({"oneOf":[{}]})", "oneOf"},
      {R"({"not":{}})", "not"},
      {R"({"anyOf":[{}],"type":"string"})", "type is not supported together with anyOf"},
      {R"({"allOf":[{},{}]})", "allOf"},
      {R"({"type":"strng"})", "there is no type strng"},
      {R"({"type":[]})", "type"},
      {R"({"type":"object","properties":{"a":{"properties":{"b":{"type":"number","multipleOf":1}}}}})",
       "#/properties/a/properties/b: multipleOf"},
      {R"({"type":"array","items":{"contains":"x"}})", "#/items: contains"},
      {R"({"type":"object","properties":{"a":{}},"required":["b"]})", "required"},
      {R"({"$ref":"http://x/y"})", "$ref"},
      {R"({"$ref":"#/$defs/none"})", "there is no #/$defs/none"},
      {R"({"$ref":"#/~"})", "$ref"},
      {R"({"$ref":"#"})", "leads to itself"},
      {R"({"$defs":{"a":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})",
       "leads to itself"},
      {R"({"enum":[]})", "enum"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "maxLength"},
      {R"({"type":"string","maxLength":100000})", "maxLength: expected 0 to 4096"},
      {R"({"type":"array","minItems":-1})", "minItems"},
      {"7", "expected a schema"},
      {"false", "expected a schema"}};
  for (const auto& [schema, message] : cases) {
    const Result<Grammar> grammar = ParseGrammar(Source(schema));
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(grammar.status().message(), HasSubstr(message)) << schema;
  }
  for (const char* source :
       {"", "{", "[]", "{}", R"({"alternatives":[]})", R"({"alternatives":[1]})"}) {
    EXPECT_FALSE(ParseGrammar(source).ok()) << source;
  }
}

TEST(SchemaGrammar, LargeSchemasAreRefused) {
  const std::string schema = "{\"type\":\"string\",\"maxLength\":4000}";
  std::string many = "{\"anyOf\":[";
  for (int i = 0; i < 100; ++i) many += schema + ",";
  many += schema + "]}";
  EXPECT_THAT(ParseGrammar(Source(many)).status().message(), HasSubstr("too large"));
  const std::string deep(5000, '[');
  EXPECT_THAT(ParseGrammar(Source("{\"enum\":[" + deep)).status().message(), HasSubstr("nested"));
}

// Two ways to read each bracket: after n of them there would be 2^n readings.
TEST(SchemaGrammar, AmbiguousSchemasStayBounded) {
  Texts texts(Source(R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"null"},
      {"type":"array","items":{"$ref":"#/$defs/a"}},
      {"type":"array","items":{"$ref":"#/$defs/a"},"maxItems":3}]}}})"));
  texts.ExpectWhole({"[[null,null],[[]]]"});
  texts.ExpectNo({std::string(200, '[')});  // what cannot be followed any more is not allowed
  std::string many = R"({"type":["null")";
  for (int i = 0; i < 7; ++i) many += R"(,"null")";
  EXPECT_THAT(ParseGrammar(Source(many + "]}")).status().message(), HasSubstr("type"));
}

}  // namespace
}  // namespace expertflow
