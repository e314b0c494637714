#include "serving/tool_calls.h"

#include <gtest/gtest.h>

#include <string>

#include "model/grammar/grammar_automaton.h"
#include "model/grammar/schema_grammar.h"

namespace expertflow {
namespace {

struct Read {
  std::string text;
  std::string calls;
};

Read ReadAll(const std::string& text, size_t step) {
  ToolCallReader reader;
  Read read;
  const auto take = [&read](const ToolCallReader::Piece& piece) {
    read.text += piece.text;
    for (const ToolCallText& call : piece.calls) read.calls += call.name + call.arguments + ";";
  };
  for (size_t at = 0; at < text.size(); at += step) take(reader.Push(text.substr(at, step)));
  take(reader.Flush());
  return read;
}

TEST(ToolCallReader, TakesCallsOutHoweverTheTextIsCut) {
  const std::string call = R"(<tool_call>
{"name": "f", "arguments": {"a": [1, "<b>"]}}
</tool_call>)";
  const std::string done = R"(f{"a":[1,"<b>"]};)";
  struct Case {
    std::string in;
    std::string text;
    std::string calls;
  };
  const Case cases[] = {
      {"just <b>text</b> <tool", "just <b>text</b> <tool", ""},
      {"\n just text \n", "\n just text \n", ""},
      {call, "", done},
      {"\n" + call + "\n" + call + "\n", "", done + done},
      {"Let me see. " + call, "Let me see. ", done},
      {call + " and so on", " and so on", done},
      {R"(<tool_call>{"name":"g"}</tool_call>)", "", "g{};"},
      {R"(<tool_call>{"name":"g","arguments":"{\"x\":1}"}</tool_call>)", "", R"(g{"x":1};)"},
      // No proper call: it stays text.
      {"<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", ""},
      {R"(<tool_call>{"arguments":{}}</tool_call>)", R"(<tool_call>{"arguments":{}}</tool_call>)",
       ""},
      {R"(<tool_call>{"name":"f")", R"(<tool_call>{"name":"f")", ""},
      {call + "<tool_call>{", "<tool_call>{", done},
      {"<tool_call>" + std::string(9999, '[') + "</tool_call>",
       "<tool_call>" + std::string(9999, '[') + "</tool_call>", ""}};
  for (const Case& one : cases) {
    for (const size_t step : {size_t{1}, size_t{7}, one.in.size()}) {
      const Read read = ReadAll(one.in, step);
      EXPECT_EQ(read.text, one.text) << one.in.substr(0, 100) << " by " << step;
      EXPECT_EQ(read.calls, one.calls) << one.in.substr(0, 100) << " by " << step;
    }
  }
}

TEST(ToolCallGrammar, AllowsOneCallOfOneOfTheFunctions) {
  auto grammar = ParseGrammar(ToolCallGrammar(
      R"([{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer"}},
          "required":["a"]}},{"name":"now"}])"));
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  GrammarAutomaton automaton(std::move(*grammar));
  const auto allows = [&automaton](const std::string& text) {
    GrammarAutomaton::StateId state = automaton.start();
    for (const char c : text) {
      state = automaton.Advance(state, static_cast<uint8_t>(c));
      if (state == GrammarAutomaton::kDead) return false;
    }
    return automaton.Accepts(state);
  };
  const std::string whole =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":12}}\n</tool_call>";
  EXPECT_TRUE(allows(whole));
  EXPECT_EQ(ReadAll(whole, 5).calls, R"(f{"a":12};)");
  EXPECT_TRUE(allows("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(allows("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(allows("{\"a\":12}"));
}

}  // namespace
}  // namespace expertflow
