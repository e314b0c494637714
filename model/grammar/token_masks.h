// Which tokens may come next, by state of a grammar: computed when first asked for, then kept. One
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "model/grammar/grammar_automaton.h"

namespace expertflow {

// The bytes of all tokens, in an order in which those with a common beginning are neighbours.
// Immutable.
class TokenOrder {
 public:
  struct Token {
    int32_t id = 0;
    uint32_t begin = 0;  // in bytes()
    uint32_t size = 0;
    uint32_t shared = 0;  // bytes at its beginning that the token before has, too
  };

  // `bytes`: of all tokens by id, one after the other; a token of 0 bytes is never allowed.
  // kInvalidArgument when `sizes` do not fit.
  static Result<std::shared_ptr<const TokenOrder>> Create(std::string bytes,
                                                          std::span<const uint32_t> sizes);

  const std::vector<Token>& tokens() const { return tokens_; }
  // Empty for an id that there is not.
  std::string_view BytesOf(int32_t id) const;
  std::string_view BytesOf(const Token& token) const {
    return std::string_view(bytes_).substr(token.begin, token.size);
  }
  size_t vocab() const { return begins_.size() - 1; }

 private:
  std::string bytes_;
  std::vector<uint32_t> begins_;  // by id, and the end
  std::vector<Token> tokens_;
};

class TokenMasks {
 public:
  using StateId = GrammarAutomaton::StateId;

  TokenMasks(Grammar grammar, std::shared_ptr<const TokenOrder> tokens)
      : automaton_(std::move(grammar)), tokens_(std::move(tokens)) {}

  StateId start() const { return automaton_.start(); }
  bool Accepts(StateId state) const { return automaton_.Accepts(state); }
  // kDead when the token is not allowed. REQUIRES: `state` is not kDead
  StateId Advance(StateId state, int32_t token);
  // A bit for each token id; holds until the next call. REQUIRES: as above
  std::span<const uint64_t> Allowed(StateId state);
  bool full() const { return automaton_.full(); }

 private:
  static constexpr size_t kMasksMax = 256;

  GrammarAutomaton automaton_;
  const std::shared_ptr<const TokenOrder> tokens_;
  std::map<StateId, std::vector<uint64_t>> masks_;
};

}  // namespace expertflow
