// Live against simulated: a recorded run is decided once more by the simulator, exactly.
#include "launch/simulate/recorded_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "launch/bench/bench_engine.h"
#include "launch/bench/bench_model.h"
#include "worker/routing_recorder.h"

namespace expertflow {
namespace {

using ::testing::HasSubstr;

// Any costs will do: without prefetch, decisions do not depend on time.
constexpr MeasuredCosts kCosts{.layer = 20'000, .experts = 5'000, .expert = 4'000};

struct CellOfTheTruth {
  double resident_percent;
  uint64_t link_bytes_per_second;
  int32_t sequences;  // at once
};

class RecordedRunTest : public ::testing::TestWithParam<CellOfTheTruth> {};

TEST_P(RecordedRunTest, FIELD_04_TheSimulatorDecidesAsTheWorkerDid) {
  const auto model =
      BenchModel::Open(EXPERTFLOW_SOURCE_DIR "/models/tiny-moe", ::testing::TempDir());
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const auto timeline = TimelineRecorder::Create("", true);
  ASSERT_TRUE(timeline.ok());
  const CellOfTheTruth& cell = GetParam();
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
  const RecordedSettings settings = {.slots = static_cast<int32_t>((*engine)->plan().expert_slots),
                                     .stream_buffers = (*engine)->plan().streaming_buffers,
                                     .link_bytes_per_second = cell.link_bytes_per_second,
                                     .link_latency_ns = 10'000};
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
  --fewer.slots;
  const auto other = SimulateRecorded(run, fewer, kCosts);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->cache_digest, live.decision_digest);
}

INSTANTIATE_TEST_SUITE_P(
    Cells, RecordedRunTest,
    ::testing::Values(CellOfTheTruth{8, 1'000'000'000, 1}, CellOfTheTruth{15, 4'000'000'000, 1},
                      CellOfTheTruth{30, 12'000'000'000, 1}, CellOfTheTruth{15, 1'000'000'000, 3},
                      CellOfTheTruth{30, 4'000'000'000, 3}, CellOfTheTruth{50, 12'000'000'000, 3}),
    [](const auto& info) {
      const CellOfTheTruth& c = info.param;
      return "Resident" + std::to_string(static_cast<int>(c.resident_percent)) + "Link" +
             std::to_string(c.link_bytes_per_second / 1'000'000'000) + "Sequences" +
             std::to_string(c.sequences);
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
  EXPECT_EQ(settings->slots, 100);
  EXPECT_EQ(settings->stream_buffers, 3);
  EXPECT_EQ(settings->chunk_bytes, 1000u);
  EXPECT_EQ(settings->link_bytes_per_second, 5000u);
  EXPECT_EQ(settings->link_latency_ns, 7);
  EXPECT_THAT(message(std::string(ok).replace(ok.find("expert_slots"), 12, "other")),
              HasSubstr("expert_slots"));
  EXPECT_THAT(message(std::string(ok).replace(ok.find("none"), 4, "x.efn")),
              HasSubstr("forecaster"));
  EXPECT_THAT(message(std::string(ok).replace(ok.find("5000"), 4, "0")), HasSubstr("no link"));
}

}  // namespace
}  // namespace expertflow
