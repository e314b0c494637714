#include "model/grammar/grammar_automaton.h"

#include <algorithm>
#include <set>

namespace expertflow {

GrammarAutomaton::GrammarAutomaton(Grammar grammar) : grammar_(std::move(grammar)), frames_(1) {
  start_ = Intern({{grammar_.root(), 0}});
}

int32_t GrammarAutomaton::Push(Grammar::NodeId return_to, int32_t below) {
  // What only returns needs no frame: recursion at the end of a rule takes no memory.
  if (grammar_.node(return_to).kind == Grammar::Kind::kReturn) return below;
  const auto [found, is_new] =
      frame_ids_.emplace(Item(return_to, below), static_cast<int32_t>(frames_.size()));
  if (is_new) frames_.push_back({return_to, below});
  return found->second;
}

GrammarAutomaton::StateId GrammarAutomaton::Intern(std::vector<Item> open) {
  std::set<Item> seen(open.begin(), open.end());
  std::vector<Item> items;
  bool accepts = false;
  const auto add = [&](Grammar::NodeId node, int32_t stack) {
    if (seen.emplace(node, stack).second) open.emplace_back(node, stack);
  };
  while (!open.empty()) {
    if (seen.size() > kReadingsMax) return kDead;
    const auto [id, stack] = open.back();
    open.pop_back();
    const Grammar::Node& node = grammar_.node(id);
    switch (node.kind) {
      case Grammar::Kind::kByte: items.emplace_back(id, stack); break;
      case Grammar::Kind::kEither:
        add(node.next, stack);
        add(node.other, stack);
        break;
      case Grammar::Kind::kCall: add(node.other, Push(node.next, stack)); break;
      case Grammar::Kind::kReturn:
        if (stack == 0) {
          accepts = true;
        } else {
          const Frame frame = frames_[static_cast<size_t>(stack)];
          add(frame.return_to, frame.below);
        }
        break;
    }
  }
  if (items.empty() && !accepts) return kDead;
  std::sort(items.begin(), items.end());
  const auto [found, is_new] =
      state_ids_.emplace(std::pair(items, accepts), static_cast<StateId>(states_.size()));
  if (is_new) states_.push_back({std::move(items), accepts, nullptr});
  return found->second;
}

GrammarAutomaton::StateId GrammarAutomaton::Advance(StateId state, uint8_t byte) {
  const auto index = static_cast<size_t>(state);
  if (states_[index].next == nullptr) {
    states_[index].next = std::make_unique<std::array<StateId, 256>>();
    states_[index].next->fill(kUnknown);
  }
  if (const StateId known = (*states_[index].next)[byte]; known != kUnknown) return known;
  std::vector<Item> open;
  for (const auto& [id, stack] : states_[index].items) {
    const Grammar::Node& node = grammar_.node(id);
    if (grammar_.set(node.set).test(byte)) open.emplace_back(node.next, stack);
  }
  const StateId next = open.empty() ? kDead : Intern(std::move(open));
  (*states_[index].next)[byte] = next;
  return next;
}

}  // namespace expertflow
