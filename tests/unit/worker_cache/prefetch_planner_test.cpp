#include "worker/cache/prefetch_planner.h"

#include <gtest/gtest.h>

#include <vector>

namespace expertflow {
namespace {

constexpr int32_t kLayers = 4;
constexpr int32_t kExperts = 8;
constexpr uint64_t kBytes = 1000;

ExpertCacheOptions CacheOptions(int32_t slots) {
  ExpertCacheOptions options;
  options.experts.assign(kLayers, kExperts);
  options.block_bytes.assign(kLayers * kExperts, kBytes);
  options.top_k = 2;
  options.slots = {slots};
  return options;
}

PrefetchPlanner Planner(const PrefetchPlannerOptions& options) {
  return PrefetchPlanner(options, std::vector<int32_t>(kLayers, kExperts), 2);
}

std::vector<LayerDemand> DecodeDemand(std::initializer_list<int32_t> experts) {
  std::vector<LayerDemand> demands;
  for (int32_t e : experts) demands.push_back({ExpertId(e), 1, 0});
  return demands;
}

TEST(PrefetchPlanner, PlansByProbabilityWithinThresholdAndBudget) {
  ExpertCache cache(CacheOptions(32));
  PrefetchPlannerOptions options;
  options.min_probability_ppm = 300'000;
  options.bytes_per_window = 2 * kBytes;
  PrefetchPlanner planner = Planner(options);
  planner.BeginWindow(LayerId(0), DecodeDemand({0}), cache.stats());
  const auto resident = cache.BeginLayer(LayerId(0), DecodeDemand({0}));
  cache.OnLoaded(resident[0].slot);
  cache.TryPrefetch({LayerId(1), ExpertId(6)}, 900'000);  // on its way: not again

  const std::vector<uint32_t> ppm = {0, 400'000, 700'000, 0, 700'000, 299'999, 990'000, 500'000};
  const auto plan = planner.Plan(LayerId(1), ppm, cache);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].key, (ExpertKey{LayerId(1), ExpertId(2)}));  // ties by lowest id
  EXPECT_EQ(plan[1].key, (ExpertKey{LayerId(1), ExpertId(4)}));
  EXPECT_EQ(planner.stats().planned, 2u);
  EXPECT_EQ(planner.stats().over_budget, 2u);
  EXPECT_TRUE(planner.Plan(LayerId(2), ppm, cache).empty()) << "the window's budget is spent";
  planner.OnRefused(kBytes);
  EXPECT_EQ(planner.Plan(LayerId(2), ppm, cache).size(), 1u);
}

TEST(PrefetchPlanner, APredictionMustBeTheSurerTheFartherItsLayer) {
  PrefetchPlannerOptions options;
  options.min_probability_ppm = 300'000;
  options.distance_step_ppm = 200'000;
  options.max_probability_ppm = 900'000;
  PrefetchPlanner planner = Planner(options);
  EXPECT_EQ(planner.ThresholdPpm(1), 300'000u);
  EXPECT_EQ(planner.ThresholdPpm(2), 500'000u);
  EXPECT_EQ(planner.ThresholdPpm(4), 900'000u);
  EXPECT_EQ(planner.ThresholdPpm(100), 900'000u);

  ExpertCache cache(CacheOptions(32));
  cache.BeginLayer(LayerId(0), DecodeDemand({0}));
  cache.EndLayer();
  const std::vector<uint32_t> ppm = {300'000, 500'000, 699'999, 700'000, 0, 0, 0, 0};
  const auto planned = [&](int32_t layer) {
    return planner.Plan(LayerId(layer), ppm, cache).size();
  };
  EXPECT_EQ(planned(1), 4u);
  EXPECT_EQ(planned(2), 3u);
  EXPECT_EQ(planned(3), 1u);
}

TEST(PrefetchPlanner, FIELD_27_PredictorQualityIsMeasured) {
  ExpertCache cache(CacheOptions(0));
  PrefetchPlanner planner = Planner({});
  cache.BeginLayer(LayerId(0), DecodeDemand({0}));
  cache.EndLayer();
  const std::vector<uint32_t> ppm = {900'000, 0, 0, 800'000, 100'000, 0, 0, 0};
  planner.Plan(LayerId(1), ppm, cache);
  planner.BeginWindow(LayerId(1), DecodeDemand({0, 5}), cache.stats());
  EXPECT_EQ(planner.stats().predictions, 2u);
  EXPECT_EQ(planner.stats().correct, 1u);
  EXPECT_EQ(planner.stats().routed, 2u);
  // Only once, and not for a layer that nobody predicted.
  planner.BeginWindow(LayerId(1), DecodeDemand({0, 5}), cache.stats());
  EXPECT_EQ(planner.stats().predictions, 2u);
}

TEST(PrefetchPlanner, TheMostLikelyOfTheNextLayerAreJudgedHoweverUnlikely) {
  ExpertCache cache(CacheOptions(8));
  PrefetchPlanner planner = Planner({.min_probability_ppm = 300'000});
  cache.BeginLayer(LayerId(0), DecodeDemand({0}));
  cache.EndLayer();
  const std::vector<uint32_t> ppm = {10'000, 0, 20'000, 0, 900'000, 20'000, 0, 0};
  EXPECT_EQ(planner.Plan(LayerId(1), ppm, cache).size(), 1u);
  ASSERT_EQ(planner.predicted().size(), 2u);
  EXPECT_EQ(planner.predicted()[0].expert, ExpertId(4));
  EXPECT_EQ(planner.predicted()[1].expert, ExpertId(2)) << "ties by lowest id";
  EXPECT_EQ(planner.stats().below_threshold, 1u);
  // Of those farther away, only what would be likely enough.
  EXPECT_EQ(planner.Plan(LayerId(2), ppm, cache).size(), 1u);
  EXPECT_EQ(planner.predicted().size(), 1u);
  EXPECT_EQ(planner.stats().below_threshold, 2u);
  planner.BeginWindow(LayerId(1), DecodeDemand({2, 5}), cache.stats());
  EXPECT_EQ(planner.stats().predictions, 2u);
  EXPECT_EQ(planner.stats().correct, 1u);
}

PrefetchPlannerOptions SwitchOptions() {
  PrefetchPlannerOptions options;
  options.period_bytes = 10'000;
  options.waste_weight_percent = 50;
  options.pause_windows = 5;
  options.pause_windows_max = 20;
  return options;
}

TEST(PrefetchPlanner, FIELD_26_SwitchesOffOnMeasuredHarmAndProbesAgain) {
  PrefetchPlanner planner = Planner(SwitchOptions());
  ExpertCacheStats cache;
  // 2,000 used, 8,000 wasted: cost 4,000 > benefit 2,000.
  cache.bytes_prefetch_used = 2'000;
  cache.bytes_wasted = 8'000;
  planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_FALSE(planner.active());
  EXPECT_EQ(planner.stats().switch_offs, 1u);
  ExpertCache empty(CacheOptions(32));
  empty.BeginLayer(LayerId(0), {});
  EXPECT_TRUE(planner.Plan(LayerId(1), std::vector<uint32_t>(8, 900'000), empty).empty());

  for (int i = 0; i < 4; ++i) planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_FALSE(planner.active());
  planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_TRUE(planner.active()) << "re-probe after the pause";
  EXPECT_EQ(planner.stats().probes, 1u);

  // Harm again: the pause doubles.
  cache.bytes_wasted += 20'000;
  planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_FALSE(planner.active());
  for (int i = 0; i < 9; ++i) planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_FALSE(planner.active());
  planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_TRUE(planner.active());

  // Benefit: stays on, and the pause is short again.
  cache.bytes_prefetch_used += 20'000;
  planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_TRUE(planner.active());
  cache.bytes_regret += 30'000;
  cache.bytes_wasted += 10'000;
  planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_FALSE(planner.active()) << "blocks that had to be loaded again count in full";
  for (int i = 0; i < 5; ++i) planner.BeginWindow(LayerId(0), {}, cache);
  EXPECT_TRUE(planner.active());
  EXPECT_TRUE(planner.CheckInvariants().ok());
}

TEST(PrefetchPlanner, FIELD_01_UsefulSpeculationStaysOn) {
  PrefetchPlanner planner = Planner(SwitchOptions());
  ExpertCacheStats cache;
  for (int i = 0; i < 100; ++i) {
    cache.bytes_prefetch_used += 6'000;
    cache.bytes_wasted += 4'000;
    planner.BeginWindow(LayerId(0), {}, cache);
    EXPECT_TRUE(planner.active());
  }
  EXPECT_EQ(planner.stats().benefit_bytes, 600'000u);
  EXPECT_EQ(planner.stats().cost_bytes, 200'000u);
}

TEST(PrefetchPlanner, DisabledNeverSpeculates) {
  PrefetchPlannerOptions options;
  options.enabled = false;
  options.pause_windows = 0;
  PrefetchPlanner planner = Planner(options);
  for (int i = 0; i < 10; ++i) planner.BeginWindow(LayerId(0), {}, {});
  EXPECT_FALSE(planner.active());
  EXPECT_TRUE(planner.CheckInvariants().ok());
}

}  // namespace
}  // namespace expertflow
