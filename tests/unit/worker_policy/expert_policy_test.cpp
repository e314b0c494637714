// Cache, planner, forecast and stride as one policy.
#include "worker/policy/expert_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/unit/predictor/random_forecaster.h"

namespace expertflow {
namespace {

constexpr int32_t kExperts = 8;
constexpr int32_t kTopK = 2;
constexpr uint64_t kBlockBytes = 100;

ExpertPolicyOptions Options(int32_t slots) {
  ExpertPolicyOptions options;
  options.cache.experts = {kExperts, 0, kExperts};  // the layer between is dense
  options.cache.block_bytes.assign(2 * kExperts, kBlockBytes);
  options.cache.top_k = kTopK;
  options.cache.slots = {slots};
  return options;
}

// Remembers what it is told.
class Listener final : public StrideController {
 public:
  explicit Listener(std::vector<StrideMeasurement>* heard) : heard_(heard) {}
  int32_t stride() const override { return 3; }
  void OnLayer(const StrideMeasurement& m) override { heard_->push_back(m); }

 private:
  std::vector<StrideMeasurement>* heard_;
};

std::vector<LayerDemand> Demand(std::initializer_list<int32_t> experts, bool prefill = false) {
  std::vector<LayerDemand> demands;
  for (const int32_t e : experts) {
    demands.push_back({ExpertId(e), prefill ? 0 : 1, prefill ? 1 : 0});
  }
  return demands;
}

// An event whose loads arrive at once.
void RunEvent(ExpertPolicy& policy, int32_t layer, const std::vector<LayerDemand>& demands,
              const EventTimes& times = {}) {
  policy.Begin(LayerId(layer), demands);
  for (const DemandDecision& d : policy.Decide()) {
    if (d.outcome == DemandOutcome::kLoad) policy.cache().OnLoaded(d.slot);
  }
  policy.End(times);
  ASSERT_TRUE(policy.CheckInvariants().ok());
}

TEST(ExpertPolicyTest, TheStrideHearsWhatTheCacheHadWithoutPrefetch) {
  std::vector<StrideMeasurement> heard;
  ExpertPolicy policy(Options(6), std::make_unique<Listener>(&heard));
  RunEvent(policy, 0, Demand({1, 2}));
  std::vector<uint32_t> likely(kExperts, 10'000);
  likely[5] = 900'000;
  likely[6] = 900'000;
  const std::vector<LayerDemand> again = Demand({1, 2});
  policy.Begin(LayerId(0), again);
  policy.Decide();
  const auto loads = policy.Prefetch(LayerId(2), likely);
  ASSERT_EQ(loads.size(), 2u);
  for (const PrefetchLoad& load : loads) policy.cache().OnLoaded(load.slot);
  policy.End({.layer_ns = 50, .stall_ns = 7, .link_busy_ns = 20, .bytes_copied = 200});
  RunEvent(policy, 2, Demand({5, 7}));

  ASSERT_EQ(heard.size(), 3u);
  EXPECT_EQ(heard[1].distinct_experts, 2);
  EXPECT_EQ(heard[1].cached_experts, 2);
  EXPECT_EQ(heard[1].expected_experts, 2);
  EXPECT_EQ(heard[1].stall_ns, 7);
  EXPECT_EQ(heard[1].link_busy_ns, 20);
  EXPECT_EQ(heard[1].bytes_copied, 200u);
  EXPECT_EQ(heard[2].distinct_experts, 2);
  EXPECT_EQ(heard[2].cached_experts, 0) << "expert 5 was there by prefetch, 7 was not";
}

TEST(ExpertPolicyTest, FIELD_23_APromptTellsTheStrideNothing) {
  std::vector<StrideMeasurement> heard;
  ExpertPolicy policy(Options(6), std::make_unique<Listener>(&heard));
  RunEvent(policy, 0, Demand({1, 2}, true));
  EXPECT_TRUE(heard.empty());
}

TEST(ExpertPolicyTest, NoLookaheadWhenNothingCanBeMissing) {
  std::vector<StrideMeasurement> heard;
  ExpertPolicy all(Options(2 * kExperts), std::make_unique<Listener>(&heard));
  EXPECT_EQ(all.lookahead(), 3);
  for (const int32_t layer : {0, 2}) RunEvent(all, layer, Demand({0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(all.lookahead(), 0);
  const ExpertPolicy none(Options(0), std::make_unique<Listener>(&heard));
  EXPECT_EQ(none.lookahead(), 0);
  ExpertPolicyOptions off = Options(6);
  off.prefetch.enabled = false;
  EXPECT_EQ(ExpertPolicy(off, std::make_unique<Listener>(&heard)).lookahead(), 0);
}

TEST(ExpertPolicyTest, PrefetchThatMakesLayersLongerIsGivenUp) {
  std::vector<StrideMeasurement> heard;
  for (const bool tries : {false, true}) {
    ExpertPolicyOptions options = Options(6);
    options.weighs_prefetch = tries;
    ExpertPolicy policy(options, std::make_unique<Listener>(&heard));
    for (int32_t i = 0; i < 400; ++i) {
      const int64_t layer_ns = (policy.lookahead() > 0 ? 60'000 : 50'000) + i % 7 * 1'000;
      RunEvent(policy, i % 2 * 2, Demand({1, 2}), {.layer_ns = layer_ns});
    }
    EXPECT_EQ(policy.prefetches(), !tries);
    EXPECT_EQ(policy.lookahead(), tries ? 0 : 3);
  }
}

TEST(ExpertPolicyTest, CostlyPredictionsAreMadeForNoMoreLeadThanACopyNeeds) {
  struct Case {
    int64_t each_ns;
    int32_t lead_min;
    int32_t lead;
  };
  std::vector<StrideMeasurement> heard;
  for (const auto& [each_ns, lead_min, lead] :
       {Case{100, 1, 3}, Case{5'000, 1, 1}, Case{5'000, 2, 2}}) {
    ExpertPolicyOptions options = Options(6);
    options.weighs_prefetch = true;
    options.lead_min = lead_min;
    ExpertPolicy policy(options, std::make_unique<Listener>(&heard));
    for (int32_t i = 0; i < 600; ++i) {
      const int64_t prediction_ns = policy.lookahead() * each_ns;
      // Prefetch pays.
      const int64_t layer_ns = (policy.lookahead() > 0 ? 50'000 : 90'000) + i % 7 * 1'000;
      RunEvent(policy, i % 2 * 2, Demand({1, 2}),
               {.layer_ns = layer_ns,
                .link_busy_ns = 1'000,
                .bytes_copied = 1'000'000,
                .predicted = policy.lookahead(),
                .prediction_ns = prediction_ns});
    }
    EXPECT_EQ(policy.lookahead(), lead);
  }
}

TEST(ExpertPolicyTest, AForecasterMustBeOfTheseLayers) {
  const std::vector<int32_t> experts = {kExperts, 0, kExperts};
  EXPECT_TRUE(ExpertPolicy::ForecasterFits(testing::RandomForecaster({8, 8}, 2, 1), experts));
  EXPECT_FALSE(ExpertPolicy::ForecasterFits(testing::RandomForecaster({8, 8, 8}, 2, 1), experts));
  EXPECT_FALSE(ExpertPolicy::ForecasterFits(testing::RandomForecaster({8, 9}, 2, 1), experts));
}

TEST(ExpertPolicyTest, AForecastOfAnEarlierEventIsNotUsedAgain) {
  ExpertPolicyOptions options = Options(3);
  options.forecaster =
      std::make_shared<NextUseModel>(testing::RandomForecaster({kExperts, kExperts}, 2, 1));
  std::vector<StrideMeasurement> heard;
  ExpertPolicy told(options, std::make_unique<Listener>(&heard));
  ExpertPolicy untold(Options(3), std::make_unique<Listener>(&heard));
  const uint16_t chosen[] = {1, 2};
  const float weights[] = {0.5F, 0.5F};
  const RoutedRow row = {SequenceId{1}, false, {chosen, weights}};
  told.Observe(LayerId(0), {&row, 1}, kTopK);
  std::mt19937 random(4);
  for (int32_t i = 0; i < 200; ++i) {
    const auto first = static_cast<int32_t>(random() % (kExperts - 1));
    const std::vector<LayerDemand> demands = Demand({first, first + 1});
    if (i == 0) {
      told.Observe(LayerId(0), {&row, 1}, kTopK);
    }
    RunEvent(told, i % 2 * 2, demands);
    RunEvent(untold, i % 2 * 2, demands);
  }
  // The first event evicts nobody, and of the others the forecaster heard nothing.
  EXPECT_EQ(told.cache().digest(), untold.cache().digest());
}

}  // namespace
}  // namespace expertflow
