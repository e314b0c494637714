// How well layers at one distance were predicted lately, and whether the pre-gate would have done
// better: of one worker's sequences, or of those of all workers. Plain data. Pure.
#pragma once

#include <cmath>
#include <cstdint>

namespace expertflow {

// What came of promises: exact sums, which can be added in any order.
struct RecallSums {
  uint64_t settled = 0;  // promises: tokens and layers
  uint64_t uses = 0;     // experts that were used
  uint64_t hits = 0;     // of those, among the top_k that the forest and probe predicted
  uint64_t pre_gate_hits = 0;
  uint64_t expected = 0;  // the sum of the probabilities of those top_k, in 1/65536
};

inline constexpr double kRecallUnit = 65536;  // of RecallSums::expected

// Decayed sums over tokens and layers.
struct LiveRecall {
  double uses = 0;
  double hits = 0;
  double expected = 0;
  double pre_gate_hits = 0;
  bool falls_back = false;  // the pre-gate is used

  double recall() const { return uses > 0 ? hits / uses : 0; }
  double pre_gate_recall() const { return uses > 0 ? pre_gate_hits / uses : 0; }
  // What was promised and not kept; below 0 when it was more.
  double overconfidence() const { return uses > 0 ? (expected - hits) / uses : 0; }

  void Add(const RecallSums& sums) {
    constexpr double kDecay = 1 - 1.0 / 1024;  // by promise
    const double kept =
        sums.settled == 1 ? kDecay : std::pow(kDecay, static_cast<double>(sums.settled));
    uses = uses * kept + static_cast<double>(sums.uses);
    hits = hits * kept + static_cast<double>(sums.hits);
    expected = expected * kept + static_cast<double>(sums.expected) / kRecallUnit;
    pre_gate_hits = pre_gate_hits * kept + static_cast<double>(sums.pre_gate_hits);
  }
  // Takes the better of the two. It must be better by this much, over at least so many uses: what
  // hovers around a threshold would switch all the time.
  void Choose() {
    constexpr double kLead = 0.02;
    constexpr double kUses = 1000;
    if (uses < kUses) return;
    const double lead = recall() - pre_gate_recall();
    if (lead < -kLead) falls_back = true;
    if (lead > kLead) falls_back = false;
  }
};

}  // namespace expertflow
