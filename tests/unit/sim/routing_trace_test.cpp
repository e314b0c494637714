// Steps of a recorded run: as they were.
#include "sim/routing_trace.h"

#include <gtest/gtest.h>

#include <vector>

namespace expertflow {
namespace {

// One layer of eight experts, top-2.
RoutingTrace Trace(const std::vector<uint16_t>& chosen) {
  RoutingTrace trace;
  trace.experts = {8};
  trace.top_k = 2;
  trace.chosen = chosen;
  trace.weights.assign(chosen.size(), 0.5F);
  return trace;
}

TEST(RoutingTraceTest, RecordedStepsHoldPromptsAndSequencesThatComeAndGo) {
  const RoutingTrace trace = Trace({0, 1, 1, 2, 3, 4, 0, 3, 5, 6, 7, 0});
  const std::vector<RecordedRow> rows = {
      {0, 0, true, false}, {0, 0, true, true},  // a prompt of two tokens
      {1, 0, false, true}, {1, 1, true, true},  // it decodes, beside another prompt
      {4, 1, false, true}, {4, 2, true, true},  // the first has ended; step numbers may jump
  };
  const Lockstep steps = MakeRecordedSteps(trace, rows);
  ASSERT_EQ(steps.steps(), 3u);
  EXPECT_EQ(steps.batch, 2);
  const auto experts = [&](size_t event) {
    return std::vector<int32_t>(steps.ExpertsOf(event).begin(), steps.ExpertsOf(event).end());
  };
  EXPECT_EQ(experts(0), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(steps.UsersOf(0)[1], 0);
  EXPECT_EQ(steps.PrefillUsersOf(0, 1), 2);
  EXPECT_EQ(experts(1), (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(steps.UsersOf(1)[1], 1);
  EXPECT_EQ(steps.PrefillUsersOf(1, 1), 1);
  EXPECT_EQ(steps.UsersOf(1)[0], 0);
  const auto second = steps.RowsOf(1);
  EXPECT_EQ(second[0].lane, 0);
  EXPECT_FALSE(second[0].first);
  EXPECT_EQ(second[1].lane, 1);
  EXPECT_TRUE(second[1].first);
  EXPECT_TRUE(second[1].prefill);
  const auto third = steps.RowsOf(2);
  EXPECT_EQ(third[0].lane, 1);
  EXPECT_EQ(third[1].lane, 0) << "the lane of the sequence that has ended";
  EXPECT_EQ(third[1].sequence, 2);
}

TEST(RoutingTraceTest, SequencesInLockstepHaveNoPrompts) {
  RoutingTrace trace = Trace({0, 1, 1, 2, 3, 4});
  trace.sequences = {{0, 2}, {2, 1}};
  const Lockstep steps = MakeLockstep(trace, std::vector<int32_t>{0, 1}, 2);
  ASSERT_EQ(steps.steps(), 2u);
  EXPECT_EQ(steps.ExpertsOf(0).size(), 4u);
  EXPECT_EQ(steps.PrefillUsersOf(0, 0), 0);
  EXPECT_TRUE(steps.RowsOf(1)[0].sampled);
}

}  // namespace
}  // namespace expertflow
