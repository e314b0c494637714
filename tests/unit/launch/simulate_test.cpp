// What simulate is told: hardware profiles and models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "launch/bench/bench_model.h"
#include "launch/simulate/hardware_profiles.h"
#include "launch/simulate/job_simulation.h"
#include "launch/simulate/sim_model.h"
#include "launch/simulate/simulation.h"
#include "sim/arms.h"
#include "sim/synthetic_routing.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProfile =
    "flops = 1e12\nmemory_bandwidth = \"100GB/s\"\nlaunch = \"1us\"\nmemory = \"8GB\"\n"
    "link = \"10GB/s\"\nlink_latency = \"5us\"\nsources = \"a test\"\n";

std::string WriteProfile(const TemporaryFolder& folder, const std::string& text) {
  const std::string path = folder.path() + "/profile.toml";
  std::ofstream(path) << text;
  return path;
}

// Of the bundled model's shape.
RoutingTrace DrawnRouting(int32_t sequences, int32_t tokens) {
  SyntheticRouting routing;
  routing.experts.assign(12, 48);
  routing.top_k = 4;
  routing.sequences = sequences;
  routing.tokens = tokens;
  return SynthesizeRouting(routing);
}

TEST(HardwareProfilesTest, AllBuiltInOnesLoadAndSayWhereTheyAreFrom) {
  EXPECT_EQ(BuiltinProfiles().size(), 7u);
  for (const auto& [name, text] : BuiltinProfiles()) {
    const auto hardware = LoadHardware(std::string(name));
    ASSERT_TRUE(hardware.ok()) << hardware.status().ToString();
    EXPECT_FALSE(hardware->sources.empty());
  }
  EXPECT_THAT(LoadHardware("b300").status().message(), HasSubstr("a100, a6000, ascend-910b"));
}

TEST(HardwareProfilesTest, AFileIsReadAndWhatIsWrongIsNamed) {
  const auto folder = TemporaryFolder::Create(::testing::TempDir());
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  const auto hardware = LoadHardware(WriteProfile(*folder, kProfile));
  ASSERT_TRUE(hardware.ok()) << hardware.status().ToString();
  EXPECT_EQ(hardware->name, "profile");
  EXPECT_EQ(hardware->link_bytes_per_second, 10'000'000'000u);
  EXPECT_EQ(hardware->link_latency_ns, 5'000);
  const struct {
    std::string from;
    std::string to;
    const char* words;
  } cases[] = {
      {"flops = 1e12", "flops = \"many\"", "flops"},
      {"flops = 1e12", "", "flops"},
      {"flops = 1e12", "flops = -1", "flops"},
      {"\"100GB/s\"", "\"fast\"", "memory_bandwidth"},
      {"launch = \"1us\"", "launch = 1", "launch"},
      {"memory = \"8GB\"", "memory = \"8\"\nmemory = 9", "profile.toml"},
      {"sources", "colour", "sources"},
      {"link_latency", "unknown = 1\nlink_latency", "unknown"},
  };
  for (const auto& test : cases) {
    std::string text = kProfile;
    text.replace(text.find(test.from), test.from.size(), test.to);
    const auto read = LoadHardware(WriteProfile(*folder, text));
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(read.status().message(), HasSubstr(test.words));
  }
}

TEST(SimModelTest, TheBundledModelHasTheSizesOfItsTensors) {
  const auto source = OpenModelOrConfig(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe");
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  const auto model = MakeSimModel(*source, "tiny-moe", {});
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->layers.size(), 12u);
  EXPECT_EQ(model->experts, 48);
  EXPECT_EQ(model->top_k, 4);
  // Experts and dense weights together are the checkpoint's 13.6 million parameters.
  const uint64_t all = model->dense_bytes + 12ull * 48 * model->expert_bytes;
  EXPECT_NEAR(static_cast<double>(all) / 2, 13.6e6, 0.1e6);
  uint64_t layers = 0;
  for (const SimLayer& layer : model->layers) layers += layer.bytes;
  EXPECT_LT(layers, model->dense_bytes);
  EXPECT_GT(layers + 2 * model->head_bytes + 10'000, model->dense_bytes);
  const auto quantised = MakeSimModel(*source, "tiny-moe", {.expert_bits = 4});
  EXPECT_NEAR(static_cast<double>(quantised->expert_bytes),
              static_cast<double>(model->expert_bytes) * 4.125 / 16, 2);
}

TEST(JobSimulationTest, RequestsThatComeAreServedByAllArmsAndTheReportSaysHow) {
  const auto source = OpenModelOrConfig(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe");
  const auto model = MakeSimModel(*source, "tiny-moe", {});
  const auto hardware = LoadHardware("edge");
  ASSERT_TRUE(model.ok() && hardware.ok());
  const RoutingTrace trace = DrawnRouting(3, 40);
  JobSimulationOptions options;
  options.each.arms = {"reactive", "static", "lru", "moe-infinity-like", "expertflow", "oracle"};
  options.each.recall = {0.9};
  options.each.batch = 2;
  options.each.memory_bytes = (512ull << 20) + model->dense_bytes + 194 * model->expert_bytes +
                              8 * 16 * model->kv_bytes_per_token;
  options.kv_bytes = 8 * 16 * model->kv_bytes_per_token;
  options.devices = 2;
  options.shared_bytes_per_second = hardware->link_bytes_per_second;
  // The last one asks for more than its sequence has.
  options.arrivals = {{0, 10, 21}, {1'000, 5, 5}, {2'000, 10, 31}, {3'000, 30, 100}};
  options.arrivals_from = "a test";
  const auto cell = SimulateJobCell(*model, *hardware, trace, "test", options);
  ASSERT_TRUE(cell.ok()) << cell.status().ToString();
  EXPECT_NEAR(cell->room.slots, 192, 2);
  EXPECT_EQ(cell->kv_tokens, 8 * 16);
  ASSERT_EQ(cell->arms.size(), options.each.arms.size());
  for (const JobArm& arm : cell->arms) {
    EXPECT_EQ(arm.result.tokens, 21u + 5u + 31u + 11u) << arm.arm;
    EXPECT_GT(arm.result.shared_busy_ns, 0) << arm.arm;
  }
  EXPECT_GT(cell->arms[0].result.total_ns, cell->arms[4].result.total_ns);
  EXPECT_THAT(JobSimulationTable({*cell}), HasSubstr("2 x edge (simulated)"));
  const std::string json = JobSimulationJson({*cell});
  EXPECT_THAT(json, HasSubstr("expertflow-simulate-job"));

  options.each.arms = {"oracle-belady"};
  const auto future = SimulateJobCell(*model, *hardware, trace, "test", options);
  EXPECT_THAT(future.status().message(), HasSubstr("oracle-belady"));
  options.each.arms = {"lru"};
  options.kv_bytes = 2 * 16 * model->kv_bytes_per_token;
  const auto small = SimulateJobCell(*model, *hardware, trace, "test", options);
  EXPECT_EQ(small.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(small.status().message(), HasSubstr("KV cache of 32 tokens"));
}

TEST(SimulationTest, AModelThatCannotFitIsRefusedWithNumbers) {
  const auto source = OpenModelOrConfig(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe");
  const auto model = MakeSimModel(*source, "tiny-moe", {});
  auto hardware = LoadHardware("edge");
  ASSERT_TRUE(model.ok() && hardware.ok());
  const RoutingTrace trace = DrawnRouting(2, 20);
  SimulationOptions options;
  options.arms = {"reactive", "expertflow"};
  options.recall = {0.9};
  options.memory_bytes = 100 << 20;
  const auto refused = SimulateCell(*model, *hardware, trace, "test", options);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("there is 10"));

  // A third of the experts.
  options.memory_bytes = (512ull << 20) + model->dense_bytes + 194 * model->expert_bytes +
                         20 * 2 * model->kv_bytes_per_token;
  const auto cell = SimulateCell(*model, *hardware, trace, "test", options);
  ASSERT_TRUE(cell.ok()) << cell.status().ToString();
  EXPECT_NEAR(cell->room.slots, 192, 2);
  ASSERT_EQ(cell->arms.size(), 2u);
  EXPECT_GT(cell->floor_bytes, 0u);
  const std::string html = SimulationHtml({*cell});
  EXPECT_THAT(html, HasSubstr("</html>"));
  EXPECT_THAT(SimulationTable({*cell}), HasSubstr("(simulated)"));
}

}  // namespace
}  // namespace expertflow
