// What simulate is told, hardware profiles and models, and what it reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/mapped_file.h"
#include "launch/bench/bench_model.h"
#include "launch/commands.h"
#include "launch/simulate/hardware_profiles.h"
#include "launch/simulate/job_simulation.h"
#include "launch/simulate/sim_model.h"
#include "launch/simulate/simulation.h"
#include "sim/arms.h"
#include "sim/synthetic_routing.h"
#include "tests/unit/launch/launch_testing.h"

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
  const Status unknown = LoadHardware("b300").status();
  EXPECT_THAT(unknown.message(), HasSubstr("a100, a6000, ascend-910b"));
  EXPECT_THAT(unknown.message(), HasSubstr("this-machine"));
}

TEST(HardwareProfilesTest, ThisMachineIsProbed) {
  const auto hardware = LoadHardware(kThisMachine, {.threads = 1});
  ASSERT_TRUE(hardware.ok()) << hardware.status().ToString();
  EXPECT_TRUE(CheckHardware(*hardware).ok());
  EXPECT_EQ(hardware->name, "this-machine");
  EXPECT_THAT(hardware->sources, HasSubstr("probed now, 1 threads, kernels "));
  EXPECT_TRUE(std::isfinite(hardware->flops));
  EXPECT_TRUE(std::isfinite(hardware->memory_bytes_per_second));
  EXPECT_GT(hardware->launch_ns, 0);
  EXPECT_GT(hardware->link_latency_ns, 0);
  const auto physical_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_LE(hardware->memory_bytes, physical_bytes);

  const auto unknown = LoadHardware(kThisMachine, {.kernels = "sse9"});
  EXPECT_THAT(unknown.status().message(), HasSubstr("sse9"));
}

TEST(HardwareProfilesTest, AFileIsReadAndWhatIsWrongIsNamed) {
  const auto folder = TemporaryFolder::Create(::testing::TempDir());
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  const auto hardware = LoadHardware(WriteProfile(*folder, kProfile));
  ASSERT_TRUE(hardware.ok()) << hardware.status().ToString();
  EXPECT_EQ(hardware->name, "profile");
  EXPECT_EQ(hardware->link_bytes_per_second, 10'000'000'000u);
  EXPECT_EQ(hardware->link_latency_ns, 5'000);
  EXPECT_EQ(DescribeHardware(*hardware),
            "1 TFLOP/s, 8.00 GB of memory at 100 GB/s, 1.00 us a launch, a link of 10.0 GB/s and "
            "5.00 us; a test");
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
  const std::string table = JobSimulationTable({*cell});
  EXPECT_THAT(table, HasSubstr("2 x edge (simulated)"));
  EXPECT_THAT(table, HasSubstr(hardware->sources));
  const auto json = nlohmann::json::parse(JobSimulationJson({*cell}));
  EXPECT_EQ(json["format"], "expertflow-simulate-job");
  EXPECT_EQ(json["rows"][0]["profile"]["sources"], hardware->sources);

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
  EXPECT_THAT(html, HasSubstr(hardware->sources));
  const std::string table = SimulationTable({*cell});
  EXPECT_THAT(table, HasSubstr("(simulated)"));
  EXPECT_THAT(table, HasSubstr(hardware->sources));
}

TEST(SimulateCommandTest, ThisMachineIsProbedBesideAProfileAndTheReportSaysSo) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/rows.json";
  const std::string model = EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/config.json";
  const auto options =
      LoadOptions(Command::kSimulate, {"--model", model, "--hardware", "this-machine,edge",
                                       "--memory", "560MB", "--arms", "lru", "--tokens", "8",
                                       "--threads", "1", "--link", "3GB/s,7us", "--json", file});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  ASSERT_EQ(SimulateCommand(*options), kExitOk);
  const auto text = ReadFileToString(file, 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const auto rows = nlohmann::json::parse(*text)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["hardware"], "this-machine");
  EXPECT_EQ(rows[1]["hardware"], "edge");
  EXPECT_THAT(rows[0]["profile"]["sources"], HasSubstr("probed now, 1 threads"));
  EXPECT_THAT(rows[1]["profile"]["sources"], HasSubstr("Published"));
  EXPECT_GT(rows[0]["profile"]["memory_bytes_per_second"], 0);
  for (const auto& row : rows) {
    EXPECT_THAT(row["profile"]["sources"], HasSubstr("--link"));
    EXPECT_EQ(row["profile"]["link_bytes_per_second"], 3'000'000'000);
    EXPECT_EQ(row["profile"]["link_latency_ns"], 7'000);
    EXPECT_GT(row["tokens_per_second"], 0);
  }
}

}  // namespace
}  // namespace expertflow
