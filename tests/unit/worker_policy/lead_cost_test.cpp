// When a lead is cut to what a copy needs.
#include "worker/policy/lead_cost.h"

#include <gtest/gtest.h>

namespace expertflow {
namespace {

constexpr uint64_t kExpertBytes = 1'000'000;

// A prediction of a layer takes `each_ns` of 100 us.
void Feed(LeadCost* cost, int32_t layers, int64_t each_ns, uint64_t bytes_per_us) {
  for (int32_t i = 0; i < layers; ++i) {
    cost->OnLayer({.predicted = 2,
                   .prediction_ns = 2 * each_ns,
                   .compute_ns = 100'000,
                   .link_busy_ns = 1'000,
                   .bytes_copied = bytes_per_us});
  }
}

TEST(LeadCostTest, CheapPredictionsLeaveTheLead) {
  LeadCost cost({.expert_bytes = kExpertBytes});
  Feed(&cost, 1000, 1'500, 10'000);
  EXPECT_NEAR(cost.share(), 0.015, 1e-9);
  EXPECT_EQ(cost.Most(8), 8);
}

TEST(LeadCostTest, CostlyOnesLeaveWhatACopyNeeds) {
  LeadCost fast({.expert_bytes = kExpertBytes});
  Feed(&fast, 255, 5'000, 10'000);
  EXPECT_EQ(fast.Most(8), 8) << "not before a whole period";
  Feed(&fast, 1, 5'000, 10'000);
  EXPECT_EQ(fast.Most(8), 1) << "an expert takes 100 us of the link";
  LeadCost slow({.expert_bytes = kExpertBytes});
  Feed(&slow, 256, 5'000, 4'000);
  EXPECT_EQ(slow.Most(8), 3) << "250 us";
  EXPECT_EQ(slow.Most(2), 2);
}

TEST(LeadCostTest, BetweenTheTwoSharesNothingChanges) {
  LeadCost cost({.expert_bytes = kExpertBytes});
  Feed(&cost, 256, 5'000, 10'000);
  Feed(&cost, 256, 1'500, 10'000);
  EXPECT_EQ(cost.Most(8), 1);
  Feed(&cost, 256, 900, 10'000);
  EXPECT_EQ(cost.Most(8), 8);
}

TEST(LeadCostTest, LayersWithoutATimeOrPredictionsDecideNothing) {
  LeadCost cost({.expert_bytes = kExpertBytes});
  Feed(&cost, 256, 5'000, 10'000);
  for (int i = 0; i < 1000; ++i) {
    cost.OnLayer({.predicted = 2, .prediction_ns = 1});
    cost.OnLayer({.compute_ns = 100'000});
  }
  EXPECT_EQ(cost.Most(8), 1);
}

}  // namespace
}  // namespace expertflow
