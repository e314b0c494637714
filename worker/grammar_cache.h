// The grammars of a worker's constrained sequences: parsed once, shared by all sequences that have
// the same, forgotten when others were used more recently. One thread, the engine's.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "common/status.h"
#include "model/grammar/token_masks.h"
#include "transport/messages.h"

namespace expertflow {

class GrammarCache {
 public:
  static constexpr size_t kGrammarsMax = 16;

  // What each token stands for; needed before the first grammar.
  Status SetTokens(const TokenBytes& tokens);
  // `source`: as in ParseGrammar(). One that has grown full is replaced by a new one.
  Result<std::shared_ptr<TokenMasks>> Get(const std::string& source);

 private:
  struct Entry {
    std::string source;
    std::shared_ptr<TokenMasks> masks;
  };

  std::shared_ptr<const TokenOrder> tokens_;
  std::list<Entry> entries_;  // the most recently used first
};

}  // namespace expertflow
