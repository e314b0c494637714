// Any bytes as a grammar's source, and what follows a zero byte as a text: memory and time are
// bounded, and a text that is whole stays allowed up to there.
#include <cstdint>
#include <string_view>

#include "model/grammar/grammar_automaton.h"
#include "model/grammar/schema_grammar.h"

using namespace expertflow;  // NOLINT: a fuzz target is one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  auto grammar = ParseGrammar(input.substr(0, zero));
  if (!grammar.ok()) return 0;
  GrammarAutomaton automaton(std::move(*grammar));
  GrammarAutomaton::StateId state = automaton.start();
  const std::string_view text = zero == std::string_view::npos
                                    ? std::string_view("{\"a\": [1, \"b\"]}")
                                    : input.substr(zero + 1);
  for (const char c : text) {
    if (state == GrammarAutomaton::kDead || automaton.full()) break;
    automaton.Accepts(state);
    state = automaton.Advance(state, static_cast<uint8_t>(c));
  }
  return 0;
}
