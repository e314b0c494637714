#include "model/grammar/token_masks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model/grammar/schema_grammar.h"

namespace expertflow {
namespace {

std::shared_ptr<const TokenOrder> Order(const std::vector<std::string>& tokens) {
  std::string bytes;
  std::vector<uint32_t> sizes;
  for (const std::string& token : tokens) {
    bytes += token;
    sizes.push_back(static_cast<uint32_t>(token.size()));
  }
  auto order = TokenOrder::Create(bytes, sizes);
  EXPECT_TRUE(order.ok());
  return *order;
}

// All bytes, and random pieces of JSON; one is empty, one there is twice.
std::vector<std::string> Vocabulary() {
  std::vector<std::string> tokens = {"", "true", "true"};
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::mt19937 random(1);
  const std::string letters = "\"{}[]:, \n0123456789.eE-truefalsnab\\u\xC3\xA9";
  for (int i = 0; i < 700; ++i) {
    std::string& token = tokens.emplace_back();
    const size_t size = 1 + random() % 6;
    for (size_t c = 0; c < size; ++c) token += letters[random() % letters.size()];
  }
  for (const char* piece : {"{\"", "\":", "\",", "[{", "}]", "null", "\"a\"", "\n  ", ": "}) {
    tokens.emplace_back(piece);
  }
  return tokens;
}

Grammar Must(const std::string& schema) {
  auto grammar = ParseGrammar(R"({"alternatives":[{"schema":)" + schema + "}]}");
  EXPECT_TRUE(grammar.ok()) << grammar.status().ToString();
  return std::move(*grammar);
}

TEST(TokenMasks, AreWhatTokenByTokenSteppingAllowsAndEveryWalkEndsInJson) {
  const std::vector<std::string> tokens = Vocabulary();
  const auto order = Order(tokens);
  std::mt19937 random(2);
  for (const char* schema :
       {"true", R"({"type":"object"})",
        R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"number"},
            "maxItems":4},"b":{"enum":["true","tab",null]}},"required":["a"]})",
        R"({"type":"string","maxLength":9})"}) {
    TokenMasks masks(Must(schema), order);
    int whole = 0;
    for (int walk = 0; walk < 60; ++walk) {
      TokenMasks::StateId state = masks.start();
      std::string text;
      for (int step = 0; step < 40; ++step) {
        const std::span<const uint64_t> allowed = masks.Allowed(state);
        std::vector<int32_t> choice;
        for (int32_t id = 0; id < static_cast<int32_t>(tokens.size()); ++id) {
          const bool is_set = (allowed[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
          ASSERT_EQ(is_set, masks.Advance(state, id) != GrammarAutomaton::kDead)
              << schema << " after " << text << ": " << tokens[static_cast<size_t>(id)];
          if (is_set) choice.push_back(id);
        }
        if (masks.Accepts(state)) {
          EXPECT_TRUE(nlohmann::json::accept(text)) << text;
          ++whole;
          if (choice.empty() || random() % 2 == 0) break;
        }
        ASSERT_FALSE(choice.empty()) << schema << " after " << text;
        const int32_t id = choice[random() % choice.size()];
        state = masks.Advance(state, id);
        text += tokens[static_cast<size_t>(id)];
      }
    }
    EXPECT_GT(whole, 5) << schema;
  }
}

TEST(TokenMasks, UnknownAndEmptyTokensAreNeverAllowed) {
  TokenMasks masks(Must("true"), Order({"", "1", "x"}));
  EXPECT_EQ(masks.Advance(masks.start(), 0), GrammarAutomaton::kDead);
  EXPECT_EQ(masks.Advance(masks.start(), 3), GrammarAutomaton::kDead);
  EXPECT_EQ(masks.Advance(masks.start(), -1), GrammarAutomaton::kDead);
  ASSERT_EQ(masks.Allowed(masks.start()).size(), 1U);
  EXPECT_EQ(masks.Allowed(masks.start())[0], 0b010U);
}

TEST(TokenMasks, MemoryIsBounded) {
  TokenMasks masks(Must("true"), Order({"[", "1", ",", "]"}));
  TokenMasks::StateId state = masks.start();
  for (int i = 0; i < 30'000 && !masks.full(); ++i) state = masks.Advance(state, 0);
  EXPECT_TRUE(masks.full());
}

TEST(TokenOrder, SizesMustFitTheBytes) {
  EXPECT_FALSE(TokenOrder::Create("abc", std::vector<uint32_t>{1, 1}).ok());
  EXPECT_FALSE(TokenOrder::Create("abc", std::vector<uint32_t>{1, 3}).ok());
  EXPECT_FALSE(TokenOrder::Create("abc", std::vector<uint32_t>{4294967295U, 4}).ok());
  const auto order = TokenOrder::Create("abc", std::vector<uint32_t>{1, 0, 2});
  ASSERT_TRUE(order.ok());
  EXPECT_EQ((*order)->BytesOf(2), "bc");
}

}  // namespace
}  // namespace expertflow
