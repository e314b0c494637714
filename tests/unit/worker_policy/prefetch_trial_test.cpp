// Prefetch is kept where it makes layers shorter, and given up where it does not.
#include "worker/policy/prefetch_trial.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace expertflow {
namespace {

constexpr int32_t kLayers = 12;

class Random {
 public:
  uint32_t Below(uint32_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state_ >> 33) % n);
  }

 private:
  uint64_t state_ = 7;
};

// Mean times of a layer with prefetch and without, half as much more or less by chance. Returns how
// many layers ran without.
int RunLayers(PrefetchTrial& trial, int passes, int64_t on_ns, int64_t off_ns, Random& random) {
  int off = 0;
  for (int i = 0; i < passes * kLayers; ++i) {
    const int64_t mean = trial.on() ? on_ns : off_ns;
    off += trial.on() ? 0 : 1;
    int64_t ns = mean / 2 + random.Below(static_cast<uint32_t>(mean));
    if (random.Below(100) == 0) ns += 4'000'000;  // somebody else had the core
    trial.OnLayer(i % kLayers == 0 ? 0 : ns);
  }
  return off;
}

TEST(PrefetchTrialTest, IsKeptWhereItSavesTimeAndTheTrialsGetRare) {
  PrefetchTrial trial({.moe_layers = kLayers});
  Random random;
  EXPECT_TRUE(trial.on());
  const int passes = 8'000;
  const int off = RunLayers(trial, passes, 40'000, 60'000, random);
  EXPECT_TRUE(trial.chosen());
  EXPECT_EQ(trial.switches(), 0u);
  EXPECT_GT(off, 0);
  EXPECT_LT(off, passes * kLayers / 100);
}

TEST(PrefetchTrialTest, IsGivenUpWhereItCostsMoreThanItSavesAndComesBack) {
  PrefetchTrial trial({.moe_layers = kLayers});
  Random random;
  int off = RunLayers(trial, 4'000, 50'000, 45'000, random);
  EXPECT_FALSE(trial.chosen());
  EXPECT_GT(off, 3'000 * kLayers);
  // The link has become slow.
  off = RunLayers(trial, 8'000, 50'000, 90'000, random);
  EXPECT_TRUE(trial.chosen());
  EXPECT_EQ(trial.switches(), 2u);
}

TEST(PrefetchTrialTest, ALittleCostIsNoReasonToWait) {
  for (const double cost_most : {0.20, 0.0}) {
    PrefetchTrial trial({.moe_layers = kLayers, .cost_most = cost_most});
    Random random;
    RunLayers(trial, 8'000, 50'000, 45'000, random);
    EXPECT_EQ(trial.chosen(), cost_most > 0);
  }
}

TEST(PrefetchTrialTest, NothingChangesWhereBothAreAlike) {
  for (const int64_t off_ns : {50'000, 50'001}) {
    PrefetchTrial trial({.moe_layers = kLayers, .sure = 4, .cost_most = 0});
    Random random;
    RunLayers(trial, 20'000, 50'000, off_ns, random);
    EXPECT_EQ(trial.switches(), 0u);
  }
}

}  // namespace
}  // namespace expertflow
