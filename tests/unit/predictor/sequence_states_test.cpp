// States of running sequences: bounded, and never taken away while they are in use.
#include "predictor/core/sequence_states.h"

#include <gtest/gtest.h>

#include <vector>

namespace expertflow {
namespace {

struct Counter {
  explicit Counter(int start) : value(start) {}
  int value;
};

TEST(SequenceStatesTest, KeepsThoseThatWereUsedLast) {
  SequenceStates<Counter> states(2);
  for (const uint64_t sequence : {1, 2, 1, 3}) {
    states.BeginEvent();
    ++states.Use({sequence}, 10).value;
  }
  EXPECT_EQ(states.size(), 2u);
  states.BeginEvent();
  EXPECT_EQ(states.Use({1}, 10).value, 12) << "used after 2";
  EXPECT_EQ(states.Use({3}, 10).value, 11);
  states.BeginEvent();
  EXPECT_EQ(states.Use({2}, 10).value, 10) << "it had to go, and begins anew";
}

TEST(SequenceStatesTest, WhatIsUsedInAnEventStaysUntilTheNext) {
  SequenceStates<Counter> states(2);
  states.BeginEvent();
  std::vector<Counter*> used;
  for (uint64_t s = 1; s <= 5; ++s) used.push_back(&states.Use({s}, static_cast<int>(s)));
  EXPECT_EQ(states.size(), 5u);
  for (uint64_t s = 1; s <= 5; ++s) EXPECT_EQ(used[s - 1], &states.Use({s}, 0)) << s;
  states.BeginEvent();
  states.Use({9}, 9);
  EXPECT_EQ(states.size(), 5u) << "one goes for each that comes";
}

}  // namespace
}  // namespace expertflow
