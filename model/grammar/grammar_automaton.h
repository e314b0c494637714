// Which bytes may follow: a grammar's states, made as they are met and kept. A state stands for all
// the ways in which the text so far can be read, so a step is one look-up once it was taken. One
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "model/grammar/grammar.h"

namespace expertflow {

class GrammarAutomaton {
 public:
  using StateId = int32_t;
  static constexpr StateId kDead = -1;
  static constexpr size_t kStatesMax = 20'000;
  // Readings of one text. Where a grammar is so ambiguous that there are more, nothing may follow.
  static constexpr size_t kReadingsMax = 2'000;

  explicit GrammarAutomaton(Grammar grammar);

  StateId start() const { return start_; }
  // kDead when the grammar allows no such text. REQUIRES: `state` is not kDead
  StateId Advance(StateId state, uint8_t byte);
  // The text so far is complete. REQUIRES: as above
  bool Accepts(StateId state) const { return states_[static_cast<size_t>(state)].accepts; }
  // It has grown beyond kStatesMax: memory wants a new one.
  bool full() const { return states_.size() > kStatesMax; }

 private:
  // Where one reading of the text stands: a byte node, and the rules that it returns to.
  using Item = std::pair<Grammar::NodeId, int32_t>;
  struct Frame {
    Grammar::NodeId return_to = Grammar::kNone;
    int32_t below = 0;
  };
  struct State {
    std::vector<Item> items;  // ascending
    bool accepts = false;
    std::unique_ptr<std::array<StateId, 256>> next;  // kUnknown where no step was taken
  };
  static constexpr StateId kUnknown = -2;

  int32_t Push(Grammar::NodeId return_to, int32_t below);
  // All byte nodes that are reached from `open` without consuming a byte. kDead when there are
  // none, or too many.
  StateId Intern(std::vector<Item> open);

  const Grammar grammar_;
  std::vector<Frame> frames_;  // 0: the empty stack
  std::map<Item, int32_t> frame_ids_;
  std::vector<State> states_;
  std::map<std::pair<std::vector<Item>, bool>, StateId> state_ids_;
  StateId start_ = kDead;
};

}  // namespace expertflow
