#include "model/grammar/number_grammar.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "model/grammar/grammar_automaton.h"

namespace expertflow {
namespace {

// All numbers, without an exponent, of at most `size` characters.
std::vector<std::string> Numbers(size_t size) {
  std::vector<std::string> found;
  const auto extend = [&](const auto& self, const std::string& text) -> void {
    const bool digit = !text.empty() && text.back() != '-' && text.back() != '.';
    if (digit) found.push_back(text);
    if (text.size() == size) return;
    for (const char c : std::string("0123456789.-")) {
      const bool point = text.find('.') != std::string::npos;
      if (c == '-' && !text.empty()) continue;
      if (c == '.' && (point || !digit)) continue;
      if (c >= '0' && c <= '9' && !point && (text == "0" || text == "-0")) continue;
      self(self, text + c);
    }
  };
  extend(extend, "");
  return found;
}

void ExpectExactly(const NumberBounds& bounds, const std::vector<std::string>& numbers) {
  Grammar grammar;
  const auto root = NumberWithin(bounds, &grammar, grammar.Return());
  ASSERT_TRUE(root.ok()) << root.status().message();
  grammar.SetRoot(*root);
  ASSERT_TRUE(grammar.CheckRecursion().ok());
  GrammarAutomaton automaton(std::move(grammar));
  for (const std::string& text : numbers) {
    GrammarAutomaton::StateId state = automaton.start();
    for (const char c : text) {
      if (state != GrammarAutomaton::kDead) {
        state = automaton.Advance(state, static_cast<uint8_t>(c));
      }
    }
    const bool allowed = state != GrammarAutomaton::kDead && automaton.Accepts(state);
    const double value = std::atof(text.c_str());
    bool expected = !(bounds.integer && text.find('.') != std::string::npos);
    if (text[0] == '-' && value == 0) expected = false;
    if (bounds.min) expected &= bounds.min_exclusive ? value > *bounds.min : value >= *bounds.min;
    if (bounds.max) expected &= bounds.max_exclusive ? value < *bounds.max : value <= *bounds.max;
    EXPECT_EQ(allowed, expected) << text;
  }
}

TEST(NumberGrammar, AllowsExactlyWhatIsWithinTheBounds) {
  const std::vector<std::string> numbers = Numbers(5);
  const double values[] = {-120, -7.25, -1, -0.5, 0, 0.5, 1, 9.99, 10, 99, 105.3};
  for (const double min : values) {
    ExpectExactly({.min = min}, numbers);
    ExpectExactly({.max = min, .integer = true}, numbers);
    for (const double max : values) {
      if (max <= min) continue;
      SCOPED_TRACE(std::to_string(min) + " to " + std::to_string(max));
      ExpectExactly({.min = min, .max = max}, numbers);
      ExpectExactly({.min = min, .max = max, .min_exclusive = true, .max_exclusive = true},
                    numbers);
      if (max - min > 1) ExpectExactly({.min = min, .max = max, .integer = true}, numbers);
    }
  }
}

TEST(NumberGrammar, BoundsWithNothingBetweenAreRefused) {
  Grammar grammar;
  const Grammar::NodeId end = grammar.Return();
  EXPECT_FALSE(NumberWithin({.min = 2, .max = 1}, &grammar, end).ok());
  EXPECT_FALSE(NumberWithin({.min = 1, .max = 1, .max_exclusive = true}, &grammar, end).ok());
  EXPECT_FALSE(NumberWithin({.min = 0.2, .max = 0.8, .integer = true}, &grammar, end).ok());
  EXPECT_FALSE(NumberWithin({.min = -0.8, .max = -0.2, .integer = true}, &grammar, end).ok());
  EXPECT_FALSE(NumberWithin({.min = 1e300}, &grammar, end).ok());
  EXPECT_TRUE(NumberWithin({.min = -1e300, .max = 1e300}, &grammar, end).ok());
}

}  // namespace
}  // namespace expertflow
