// One lead for all workers, from what each of them measures.
#include "predictor/core/global_stride.h"

#include <gtest/gtest.h>

#include "predictor/core/followed_stride.h"
#include "predictor/learnt_messages.h"

namespace expertflow {
namespace {

constexpr uint64_t kExpertBytes = 1'000'000;
constexpr int32_t kLayers = 6;
const WorkerId kOne{1}, kTwo{2};

// A layer of 1 ms that misses two of four experts, over a link that takes `copy_ms` for one.
StrideMeasurement Layer(double copy_ms, int32_t late = 0) {
  StrideMeasurement m;
  m.distinct_experts = 4;
  m.cached_experts = 2;
  m.prefetch_hits = 2 - late;
  m.prefetch_late_hits = late;
  m.bytes_copied = 2 * kExpertBytes;
  m.link_busy_ns = static_cast<int64_t>(2 * copy_ms * 1e6);
  m.layer_ns = 10'000'000;
  m.stall_ns = 9'000'000;
  return m;
}

StrideWindow Window(double copy_ms, int32_t steps = 4, int32_t late = 0) {
  StrideWindow window;
  for (int32_t i = 0; i < steps * kLayers; ++i) window.Add(Layer(copy_ms, late));
  return window;
}

TEST(GlobalStrideTest, OneWorkerAloneDecidesAsItsOwnController) {
  DynamicStride own({.expert_bytes = kExpertBytes, .moe_layers = kLayers});
  GlobalStride global;
  for (const double copy_ms : {0.3, 0.3, 0.9, 0.9, 0.9, 2.5, 2.5, 2.5, 0.3, 0.3, 0.3}) {
    for (int32_t i = 0; i < 4 * kLayers; ++i) own.OnLayer(Layer(copy_ms, 1));
    global.OnReport(kOne, kExpertBytes, 8, Window(copy_ms, 4, 1));
    EXPECT_EQ(global.published().stride, own.stride());
    EXPECT_EQ(global.published().link_bound, own.link_bound());
  }
  EXPECT_GT(own.changes(), 2u);
  ASSERT_EQ(global.steps().size(), own.steps().size());
  for (size_t i = 0; i < own.steps().size(); ++i) {
    EXPECT_EQ(global.steps()[i].event, own.steps()[i].event);
    EXPECT_EQ(global.steps()[i].cause, own.steps()[i].cause);
  }
}

// Half of the layers have a link three times as slow: one lead for the mean, whoever reports first.
TEST(GlobalStrideTest, SeveralWorkersAreOneThatMeasuresBoth) {
  DynamicStride both({.expert_bytes = kExpertBytes, .moe_layers = kLayers});
  GlobalStride global;
  GlobalStride other;
  global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  other.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  both.OnWindow(Window(0.6));
  // The second one is new: its round ends with the first one's report.
  for (int round = 0; round < 10; ++round) {
    StrideWindow sum = Window(0.6);
    sum.Add(Window(1.8));
    both.OnWindow(sum);
    global.OnReport(kTwo, kExpertBytes, 8, Window(1.8));
    global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
    if (round == 0) {
      other.OnReport(kTwo, kExpertBytes, 8, Window(1.8));
      other.OnReport(kOne, kExpertBytes, 8, Window(0.6));
    } else {
      other.OnReport(kOne, kExpertBytes, 8, Window(0.6));
      other.OnReport(kTwo, kExpertBytes, 8, Window(1.8));
    }
    EXPECT_EQ(global.published().stride, both.stride()) << round;
    EXPECT_EQ(other.published().stride, both.stride()) << round;
  }
  EXPECT_EQ(global.rounds(), 11u);
  EXPECT_GT(both.stride(), 1);
}

TEST(GlobalStrideTest, OneThatIsSilentOrGoneIsNotWaitedFor) {
  GlobalStride global;
  global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  global.OnReport(kTwo, kExpertBytes, 8, Window(0.6));
  global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  EXPECT_EQ(global.rounds(), 2u);
  // The second one stops; the first one's next report but one goes without it.
  global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  EXPECT_EQ(global.rounds(), 2u);
  global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  EXPECT_EQ(global.rounds(), 4u);
  global.OnReport(kTwo, kExpertBytes, 8, Window(0.6));
  global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  EXPECT_EQ(global.rounds(), 5u);
  global.Forget(kTwo);
  global.OnReport(kOne, kExpertBytes, 8, Window(0.6));
  EXPECT_EQ(global.rounds(), 6u);
}

TEST(GlobalStrideTest, OnlyChangesArePublishedAndNonsenseIsIgnored) {
  GlobalStride global;
  EXPECT_FALSE(global.OnReport(kOne, 0, 8, Window(0.3)));
  EXPECT_FALSE(global.OnReport(kOne, kExpertBytes, 0, Window(0.3)));
  EXPECT_EQ(global.published().number, 0u);
  EXPECT_TRUE(global.steps().empty());
  EXPECT_TRUE(global.OnReport(kOne, kExpertBytes, 8, Window(0.3)));
  EXPECT_EQ(global.published().number, 1u);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(global.OnReport(kOne, kExpertBytes, 8, Window(0.3)));
  EXPECT_FALSE(global.OnReport(kOne, kExpertBytes, 8, StrideWindow{}));
  EXPECT_EQ(global.published().number, 1u);
}

TEST(PublishedStrideTest, IsOneNumberAndAnyNumberIsSafe) {
  const PublishedStride published{7, 5, StrideCause::kWaste, true};
  const PublishedStride read = UnpackStride(PackStride(published));
  EXPECT_EQ(read.number, 7u);
  EXPECT_EQ(read.stride, 5);
  EXPECT_EQ(read.cause, StrideCause::kWaste);
  EXPECT_TRUE(read.link_bound);
  EXPECT_EQ(UnpackStride(0).number, 0u);
  EXPECT_EQ(UnpackStride(UINT64_MAX).cause, StrideCause::kLinkBound);
}

TEST(FollowedStrideTest, FollowsTheNewsAndGoesOnWithoutAny) {
  FollowedStride stride({.moe_layers = kLayers, .stride_max = 4});
  EXPECT_EQ(stride.stride(), 1);
  stride.Follow({});
  EXPECT_EQ(stride.stride(), 1);
  stride.Follow({1, 3, StrideCause::kMeasured, false});
  EXPECT_EQ(stride.stride(), 3);
  stride.Follow({2, 9, StrideCause::kLinkBound, true});
  EXPECT_EQ(stride.stride(), 4);  // as far as it has room
  EXPECT_TRUE(stride.link_bound());
  stride.Follow({});
  EXPECT_EQ(stride.stride(), 4);
  EXPECT_EQ(stride.changes(), 2u);
  ASSERT_EQ(stride.steps().size(), 3u);
  EXPECT_EQ(stride.steps()[2].cause, StrideCause::kLinkBound);
}

TEST(FollowedStrideTest, GivesOutWholeWindows) {
  FollowedStride stride({.moe_layers = kLayers});
  for (int32_t i = 0; i < 4 * kLayers; ++i) {
    EXPECT_FALSE(stride.TakeWindow().has_value());
    stride.OnLayer(Layer(0.5));
  }
  stride.OnLayer(Layer(0.5));  // what has come meanwhile is part of it
  const auto window = stride.TakeWindow();
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->events, 4u * kLayers + 1);
  EXPECT_EQ(window->distinct, 4u * (4 * kLayers + 1));
  EXPECT_FALSE(stride.TakeWindow().has_value());
}

// By name: what a worker measured arrives in the same place.
TEST(StrideReportTest, HasTheFieldsOfTheWindow) {
  StrideWindow w;
  w.events = 1;
  w.timed_events = 2;
  w.distinct = 3;
  w.expected = 4;
  w.cached = 5;
  w.prefetch_hits = 6;
  w.prefetch_late = 7;
  w.copied = 8;
  w.wasted = 9;
  w.busy_ns = 10;
  w.layer_ns = 11;
  w.stall_ns = 12;
  const StrideReport report = ToMessage(w, 1'000, 8);
  EXPECT_EQ(report.expert_bytes, 1'000u);
  EXPECT_EQ(report.stride_max, 8u);
  EXPECT_EQ(report.events, 1u);
  EXPECT_EQ(report.wasted, 9u);
  EXPECT_EQ(report.stall_ns, 12u);
  const StrideWindow back = StrideWindowFrom(report);
  EXPECT_EQ(back.events, w.events);
  EXPECT_EQ(back.timed_events, w.timed_events);
  EXPECT_EQ(back.distinct, w.distinct);
  EXPECT_EQ(back.expected, w.expected);
  EXPECT_EQ(back.cached, w.cached);
  EXPECT_EQ(back.prefetch_hits, w.prefetch_hits);
  EXPECT_EQ(back.prefetch_late, w.prefetch_late);
  EXPECT_EQ(back.copied, w.copied);
  EXPECT_EQ(back.wasted, w.wasted);
  EXPECT_EQ(back.busy_ns, w.busy_ns);
  EXPECT_EQ(back.layer_ns, w.layer_ns);
  EXPECT_EQ(back.stall_ns, w.stall_ns);
}

}  // namespace
}  // namespace expertflow
