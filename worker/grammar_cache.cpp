#include "worker/grammar_cache.h"

#include <algorithm>
#include <utility>

#include "model/grammar/schema_grammar.h"

namespace expertflow {

Status GrammarCache::SetTokens(const TokenBytes& tokens) {
  ASSIGN_OR_RETURN(tokens_, TokenOrder::Create(tokens.bytes, tokens.sizes));
  entries_.clear();
  return OkStatus();
}

Result<std::shared_ptr<TokenMasks>> GrammarCache::Get(const std::string& source) {
  if (tokens_ == nullptr) {
    return FailedPrecondition("a sequence with a grammar came before the vocabulary");
  }
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.source == source; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    if (!found->masks->full()) return found->masks;
    entries_.pop_front();
  }
  ASSIGN_OR_RETURN(Grammar grammar, ParseGrammar(source));
  entries_.push_front({source, std::make_shared<TokenMasks>(std::move(grammar), tokens_)});
  if (entries_.size() > kGrammarsMax) entries_.pop_back();
  return entries_.front().masks;
}

}  // namespace expertflow
