// A state for each running sequence, of a bounded number of sequences: when there is no room for
// another one, the state that was used longest ago goes, unless it is in use in the present event.
// One thread. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "common/check.h"
#include "common/ids.h"

namespace expertflow {

template <typename State>
class SequenceStates {
 public:
  // REQUIRES: max > 0
  explicit SequenceStates(size_t max) : max_(max) { CHECK(max_ > 0); }

  // A new event: states that are used in it stay where they are until the next one, even where
  // they are more than there is room for.
  void BeginEvent() { ++event_; }
  // The sequence's state, made from `arguments` if there is none.
  template <typename... Arguments>
  State& Use(SequenceId sequence, const Arguments&... arguments) {
    auto found = states_.find(sequence);
    if (found == states_.end()) {
      if (states_.size() >= max_) MakeRoom();
      found = states_.try_emplace(sequence, arguments...).first;
    }
    found->second.event = event_;
    return found->second.state;
  }
  size_t size() const { return states_.size(); }

 private:
  struct Used {
    template <typename... Arguments>
    explicit Used(const Arguments&... arguments) : state(arguments...) {}
    State state;
    uint64_t event = 0;
  };

  void MakeRoom() {
    const auto oldest =
        std::min_element(states_.begin(), states_.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second.event, a.first) < std::pair(b.second.event, b.first);
        });
    if (oldest->second.event < event_) states_.erase(oldest);
  }

  const size_t max_;
  uint64_t event_ = 0;
  std::map<SequenceId, Used> states_;
};

}  // namespace expertflow
