// The arms of a simulation, and the roofline under them.
#include "sim/arms.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "sim/roofline.h"
#include "sim/synthetic_routing.h"
#include "tests/unit/predictor/random_forecaster.h"

namespace expertflow {
namespace {

HardwareProfile Hardware() {
  HardwareProfile hardware;
  hardware.name = "test";
  hardware.flops = 1e12;
  hardware.memory_bytes_per_second = 1e11;
  hardware.launch_ns = 1'000;
  hardware.memory_bytes = 1u << 30;
  hardware.link_bytes_per_second = 10'000'000'000;
  hardware.link_latency_ns = 5'000;
  return hardware;
}

SimModel Model() {
  SimModel model;
  model.name = "small";
  model.layers.assign(
      6, {.bytes = 5'000'000, .flops_per_row = 5e6, .kv_bytes_per_token = 1'000, .kernels = 10});
  model.experts = 16;
  model.top_k = 4;
  model.expert_bytes = 1'000'000;
  model.expert_flops_per_row = 1e6;
  model.head_bytes = 2'000'000;
  model.head_flops_per_row = 2e6;
  return model;
}

TEST(RooflineTest, TakesTheLongerOfBytesAndOperationsAndTheLaunches) {
  const SimModel model = Model();
  const HardwareProfile hardware = Hardware();
  const Roofline roofline(model, hardware);
  // 5 MB and 1,000 tokens of 1 kB at 100 GB/s: 60 us; ten launches.
  EXPECT_EQ(roofline.BeforeExpertsNs(0, 1, 1'000), 60'000 + 10'000);
  // 100 rows: 5e8 operations at 1e12 a second.
  EXPECT_EQ(roofline.BeforeExpertsNs(0, 100, 1'000), 500'000 + 10'000);
  EXPECT_EQ(roofline.ExpertsNs(0, 4, 4), 40'000 + 3'000);
  EXPECT_EQ(roofline.StepEndNs(1), 20'000 + 3'000);
}

TEST(RooflineTest, ImpossibleHardwareIsNamed) {
  EXPECT_TRUE(CheckHardware(Hardware()).ok());
  const auto expect = [](void (*spoil)(HardwareProfile&), const char* word) {
    HardwareProfile hardware = Hardware();
    spoil(hardware);
    const Status status = CheckHardware(hardware);
    ASSERT_FALSE(status.ok()) << word;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  };
  expect([](HardwareProfile& h) { h.flops = 0; }, "flops");
  expect([](HardwareProfile& h) { h.memory_bytes_per_second = -1; }, "memory_bandwidth");
  expect([](HardwareProfile& h) { h.launch_ns = -1; }, "launch");
  expect([](HardwareProfile& h) { h.memory_bytes = 0; }, "memory");
  expect([](HardwareProfile& h) { h.link_bytes_per_second = 0; }, "link");
  expect([](HardwareProfile& h) { h.link_latency_ns = -1; }, "link_latency");
}

class ArmsTest : public ::testing::Test {
 protected:
  ArmsTest() {
    SyntheticRouting options;
    options.experts.assign(6, 16);
    options.top_k = 4;
    options.sequences = 4;
    options.tokens = 80;
    trace_ = SynthesizeRouting(options);
    std::vector<int32_t> all(trace_.sequences.size());
    std::iota(all.begin(), all.end(), 0);
    lockstep_ = MakeLockstep(trace_, all, 2);
    uses_.assign(96, 1);
  }

  DeviceSimResult Run(std::string_view name) {
    ArmSetup setup;
    setup.trace = &trace_;
    setup.lockstep = &lockstep_;
    setup.training_uses = uses_;
    setup.recall = {0.9, 0.8, 0.7};
    setup.forecaster = forecaster_;
    setup.stride = stride_;
    auto arm = MakeArm(name, setup, 1'000'000);
    EXPECT_TRUE(arm.ok()) << arm.status().ToString();
    arm->options.slots = {40};
    arm->options.link_bytes_per_second = 10'000'000'000;
    arm->options.check_invariants = true;
    const SimModel model = Model();
    const HardwareProfile hardware = Hardware();
    auto result =
        SimulateDevice(trace_, lockstep_, Roofline(model, hardware), std::move(arm->options));
    EXPECT_TRUE(result.ok()) << name << ": " << result.status().ToString();
    return result.ok() ? *std::move(result) : DeviceSimResult{};
  }

  RoutingTrace trace_;
  Lockstep lockstep_;
  std::vector<uint64_t> uses_;
  StrideBounds stride_;
  std::shared_ptr<const NextUseModel> forecaster_;
};

TEST_F(ArmsTest, AMeasuredStrideStaysWithinItsBounds) {
  for (const StrideBounds bounds : {StrideBounds{3, 4}, StrideBounds{2, 2}}) {
    stride_ = bounds;
    const DeviceSimResult result = Run("expertflow");
    ASSERT_FALSE(result.strides.empty());
    for (const StrideChange& change : result.strides) {
      EXPECT_GE(change.stride, bounds.least);
      EXPECT_LE(change.stride, bounds.most);
    }
  }
}

TEST_F(ArmsTest, EachServesEveryUseAndDecidesTheSameAgain) {
  uint64_t uses = 0;
  for (const std::string_view name : ArmNames()) {
    const DeviceSimResult result = Run(name);
    EXPECT_EQ(result.digest, Run(name).digest) << name;
    const uint64_t found = result.hits + result.late_hits + result.misses;
    if (uses == 0) uses = found;
    EXPECT_EQ(found, uses) << name;
    EXPECT_GE(result.total_ns, result.stall_ns) << name;
    EXPECT_FALSE(ArmMeaning(name).empty()) << name;
  }
}

TEST_F(ArmsTest, NobodyMovesFewerBytesThanTheBestCacheAndNobodyMoreThanNone) {
  const DeviceSimResult none = Run("reactive");
  const DeviceSimResult best = Run("oracle-belady");
  EXPECT_EQ(none.hits, 0u);
  const uint64_t least = best.bytes_demand + best.bytes_prefetch;
  for (const std::string_view name : ArmNames()) {
    const DeviceSimResult result = Run(name);
    EXPECT_GE(result.bytes_demand + result.bytes_prefetch, least) << name;
    EXPECT_LE(result.bytes_demand, none.bytes_demand) << name;
    EXPECT_LE(result.stall_ns, none.stall_ns) << name;
  }
  EXPECT_LT(Run("expertflow").stall_ns, Run("lru").stall_ns);
  EXPECT_LE(Run("oracle").stall_ns, Run("expertflow").stall_ns);
}

TEST_F(ArmsTest, AForecasterServesTheArmsThatHaveOurCache) {
  const uint64_t ours = Run("expertflow").digest;
  const uint64_t lru = Run("expertflow-lru").digest;
  forecaster_ =
      std::make_shared<NextUseModel>(testing::RandomForecaster(std::vector<int32_t>(6, 16), 4, 2));
  EXPECT_NE(Run("expertflow").digest, ours);
  EXPECT_EQ(Run("expertflow-lru").digest, lru);
}

TEST_F(ArmsTest, AnUnknownArmIsNamedWithAllThatThereAre) {
  const auto arm = MakeArm("magic", ArmSetup{}, 1);
  ASSERT_FALSE(arm.ok());
  EXPECT_NE(arm.status().message().find("\"magic\""), std::string::npos);
  EXPECT_NE(arm.status().message().find("oracle-belady"), std::string::npos);
}

}  // namespace
}  // namespace expertflow
