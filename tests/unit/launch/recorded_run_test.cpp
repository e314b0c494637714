// Live against simulated: a recorded run is decided once more by the simulator, exactly.
#include "launch/simulate/recorded_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "expert_store/store_writer.h"
#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_model.h"
#include "worker/cached_executor.h"
#include "worker/routing_recorder.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

// Any costs will do: without prefetch, decisions do not depend on time.
constexpr MeasuredCosts kCosts{.layer = 20'000, .experts = 5'000, .expert = 4'000};

struct CellOfTheTruth {
  double resident_percent;
  uint64_t link_bytes_per_second;
  int32_t sequences;   // at once
  bool mixed = false;  // experts of two types, and slots of two sizes
};

// The bundled model with every third expert as INT8, the others as INT4.
Result<BenchModel> MixedModel() {
  ASSIGN_OR_RETURN(const BenchCheckpoint source,
                   BenchCheckpoint::Open(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe"));
  const WeightPlan& plan = source.architecture->weights();
  StoreSettings settings;
  for (size_t i = 0; i < plan.experts.size(); ++i) {
    settings.each_expert.push_back(i % 3 == 0 ? DType::kInt8 : DType::kInt4);
  }
  ASSIGN_OR_RETURN(const std::string config,
                   ReadFileToString(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe/config.json", 1 << 20));
  ASSIGN_OR_RETURN(const StoreLayout layout,
                   StoreLayout::Make(plan, *source.checkpoint, config, settings));
  // What is mapped stays when its name is gone.
  ASSIGN_OR_RETURN(const TemporaryFolder temporary, TemporaryFolder::Create(::testing::TempDir()));
  const std::string path = temporary.path() + "/mixed.efstore";
  RETURN_IF_ERROR(PackStore(layout, path, {}));
  return BenchModel::Open(path, temporary.path());
}

class RecordedRunTest : public ::testing::TestWithParam<CellOfTheTruth> {};

TEST_P(RecordedRunTest, FIELD_04_TheSimulatorDecidesAsTheWorkerDid) {
  const CellOfTheTruth& cell = GetParam();
  const auto model =
      cell.mixed ? MixedModel()
                 : BenchModel::Open(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe", ::testing::TempDir());
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const auto timeline = TimelineRecorder::Create("", true);
  ASSERT_TRUE(timeline.ok());
  BenchEngineOptions options;
  options.in_place = false;
  options.resident_percent = cell.resident_percent;
  options.link = {
      .bytes_per_second = cell.link_bytes_per_second, .latency_ns = 10'000, .emulated = true};
  options.timeline = timeline->get();
  const auto engine = BenchEngine::Create(*model, options);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  RecordedRun run;
  const auto recorder = RoutingRecorder::Create(
      RecordedShape(model->store(), model->architecture().shape(), false, "{}"), run);
  ASSERT_TRUE(recorder.ok());
  (*engine)->engine().RecordTo(recorder->get());
  // Prompts come and go while others decode.
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 3 * cell.sequences; ++i) {
    ASSERT_TRUE(
        (*engine)->Start(RandomPrompt(3 + 5 * i, 4096, static_cast<uint32_t>(i)), 12, 1).ok());
    for (int32_t step = 0; step < 12 / cell.sequences; ++step) {
      ASSERT_TRUE((*engine)->Step(&tokens).ok());
    }
  }
  ASSERT_TRUE((*engine)->RunToEnd(&tokens).ok());

  const WorkerStats live = (*engine)->engine().stats();
  ASSERT_EQ(run.steps().size(), live.steps);
  RecordedSettings settings;
  settings.slots = SlotsOf((*engine)->plan().slot_classes);
  ASSERT_EQ(settings.slots.size(), cell.mixed ? 2u : 1u);
  settings.stream_buffers = (*engine)->plan().streaming_buffers;
  settings.link_bytes_per_second = cell.link_bytes_per_second;
  settings.link_latency_ns = 10'000;
  ASSERT_EQ(run.shape().block_bytes.empty(), !cell.mixed);
  ASSERT_TRUE(
      settings.TakeBlocks(cell.mixed ? run.shape().block_bytes : model->store().ExpertBlockBytes())
          .ok());
  const auto simulated = SimulateRecorded(run, settings, kCosts);
  ASSERT_TRUE(simulated.ok()) << simulated.status().ToString();
  EXPECT_EQ(simulated->cache_digest, live.decision_digest);
  EXPECT_EQ(simulated->hits, live.hits);
  EXPECT_EQ(simulated->misses, live.misses);
  EXPECT_EQ(simulated->bypasses, live.bypasses);
  EXPECT_EQ(simulated->tokens, live.decode_tokens);
  EXPECT_EQ(simulated->prefill_tokens, live.prefill_tokens);
  EXPECT_EQ(simulated->bytes_demand, live.bytes_demand);
  EXPECT_GT(live.bypasses, 0u);
  // One slot less is another cache.
  RecordedSettings fewer = settings;
  --fewer.slots.back();
  const auto other = SimulateRecorded(run, fewer, kCosts);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->cache_digest, live.decision_digest);
}

INSTANTIATE_TEST_SUITE_P(
    Cells, RecordedRunTest,
    ::testing::Values(CellOfTheTruth{8, 1'000'000'000, 1}, CellOfTheTruth{15, 4'000'000'000, 1},
                      CellOfTheTruth{30, 12'000'000'000, 1}, CellOfTheTruth{15, 1'000'000'000, 3},
                      CellOfTheTruth{30, 4'000'000'000, 3}, CellOfTheTruth{50, 12'000'000'000, 3},
                      CellOfTheTruth{30, 4'000'000'000, 1, true},
                      CellOfTheTruth{15, 4'000'000'000, 3, true}),
    [](const auto& info) {
      const CellOfTheTruth& c = info.param;
      return "Resident" + std::to_string(static_cast<int>(c.resident_percent)) + "Link" +
             std::to_string(c.link_bytes_per_second / 1'000'000'000) + "Sequences" +
             std::to_string(c.sequences) + (c.mixed ? "Mixed" : "");
    });

TEST(RecordedSettingsTest, WhatCannotBeSimulatedStepByStepIsNamed) {
  TraceShape shape;
  const auto message = [&](const std::string& config) {
    shape.config = config;
    return SettingsOf(shape).status().message();
  };
  EXPECT_THAT(message("no JSON"), HasSubstr("how its run was set up"));
  EXPECT_THAT(message(R"({"device_memory": "host"})"), HasSubstr("in place"));
  EXPECT_THAT(message(R"({"device_memory": "private", "prefetch": true})"),
              HasSubstr("--prefetch off"));
  const std::string ok = R"({"device_memory": "private", "prefetch": false, "forecaster": "none",
      "expert_slots": 100, "streaming_buffers": 3, "transfer_chunk_bytes": 1000,
      "link_bytes_per_second": 5000, "link_latency_ns": 7})";
  shape.config = ok;
  const auto settings = SettingsOf(shape);
  ASSERT_TRUE(settings.ok()) << settings.status().ToString();
  EXPECT_EQ(settings->slots, (std::vector<int32_t>{100}));
  EXPECT_EQ(settings->stream_buffers, 3);
  EXPECT_EQ(settings->chunk_bytes, 1000u);
  EXPECT_EQ(settings->link_bytes_per_second, 5000u);
  EXPECT_EQ(settings->link_latency_ns, 7);
  const auto with_sizes = [&](const std::string& sizes) {
    return std::string(ok).insert(1, "\"slots_by_size\": " + sizes + ", ");
  };
  shape.config = with_sizes("[20, 80]");
  const auto sizes = SettingsOf(shape);
  ASSERT_TRUE(sizes.ok()) << sizes.status().ToString();
  EXPECT_EQ(sizes->slots, (std::vector<int32_t>{20, 80}));
  EXPECT_THAT(message(with_sizes("[20, -1]")), HasSubstr("slots_by_size"));
  EXPECT_THAT(message(std::string(ok).replace(ok.find("expert_slots"), 12, "other")),
              HasSubstr("expert_slots"));
  EXPECT_THAT(message(std::string(ok).replace(ok.find("none"), 4, "x.efn")),
              HasSubstr("forecaster"));
  EXPECT_THAT(message(std::string(ok).replace(ok.find("5000"), 4, "0")), HasSubstr("no link"));
}

}  // namespace
}  // namespace expertflow
