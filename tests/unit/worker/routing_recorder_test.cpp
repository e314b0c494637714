// What an engine records, against what it says of itself.
#include "worker/routing_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/half.h"
#include "tests/unit/worker/small_engine.h"

namespace expertflow {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::MakeEngine;
using testing::MakeFaultDevice;
using testing::Request;
using ::testing::SizeIs;
using testing::SmallModel;

class MemorySink final : public TraceSink {
 public:
  Status Begin(const TraceShape& shape) override {
    this->shape = shape;
    return OkStatus();
  }
  Status Sequence(const TraceSequence& sequence) override {
    sequences.push_back(sequence);
    return OkStatus();
  }
  Status Rows(const TraceRows& rows) override {
    if (steps.size() == fail_at) return Unavailable("disk full");
    EXPECT_TRUE(CheckTraceRows(shape, sequences.size(), rows).ok());
    steps.push_back(rows);
    return OkStatus();
  }
  TraceShape shape;
  std::vector<TraceSequence> sequences;
  std::vector<TraceRows> steps;
  size_t fail_at = SIZE_MAX;
};

// A prompt of five tokens taken in chunks, two sequences, the first layer dense.
struct Recorded {
  explicit Recorded(bool features, size_t fail_at = SIZE_MAX)
      : model({.layers = 3, .dense_layers = "[0]"}) {
    sink.fail_at = fail_at;
    const auto device = MakeFaultDevice();
    const auto engine = MakeEngine(model, *device, {.prefill_tokens = 3});
    const TraceShape shape =
        RecordedShape(model.store(), model.architecture().shape(), features, "{}");
    auto made = RoutingRecorder::Create(shape, sink);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    recorder = std::move(made).value();
    engine->RecordTo(recorder.get());
    for (StartSequence start : {Request(7, {5, 6, 7, 8, 9}, 3), Request(8, {10}, 2)}) {
      start.capture_routes = true;
      EXPECT_TRUE(engine->Start(start).ok());
    }
    while (!engine->idle()) {
      StepOutput output;
      EXPECT_TRUE(engine->Step(&output).ok());
      EXPECT_THAT(output.failed, IsEmpty());
      tokens += output.tokens.size();
      captured.push_back(output.captured);
    }
  }
  SmallModel model;
  MemorySink sink;
  std::unique_ptr<RoutingRecorder> recorder;
  size_t tokens = 0;
  std::vector<std::vector<CapturedPosition>> captured;  // by step
};

TEST(RoutingRecorderTest, RecordsEveryRowAsItWasRouted) {
  const Recorded recorded(false);
  EXPECT_THAT(recorded.sink.shape.layer_ids, ElementsAre(1, 2));
  EXPECT_THAT(recorded.sink.shape.experts, ElementsAre(6, 6));
  EXPECT_EQ(recorded.sink.shape.columns, 0U);
  // A prompt of one token is a step of one row and comes first.
  ASSERT_THAT(recorded.sink.sequences, SizeIs(2));
  EXPECT_EQ(recorded.sink.sequences[0].id, 8U);
  EXPECT_EQ(recorded.sink.sequences[1].id, 7U);
  EXPECT_EQ(recorded.sink.sequences[1].prompt_tokens, 5);

  const std::vector<TraceRows>& steps = recorded.sink.steps;
  ASSERT_THAT(steps, SizeIs(recorded.captured.size()));
  EXPECT_THAT(steps[0].token, ElementsAre(10, 5, 6, 7));
  EXPECT_THAT(steps[0].position, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(steps[0].flags, ElementsAre(kTraceRowPrompt | kTraceRowSampled, kTraceRowPrompt,
                                          kTraceRowPrompt, kTraceRowPrompt));
  // The next step decodes one sequence and ends the other's prompt.
  EXPECT_THAT(steps[1].position, ElementsAre(1, 3, 4));
  EXPECT_THAT(steps[1].flags,
              ElementsAre(kTraceRowSampled, kTraceRowPrompt, kTraceRowPrompt | kTraceRowSampled));
  for (size_t step = 0; step < steps.size(); ++step) {
    EXPECT_THAT(steps[step].step, Each(step));
    ASSERT_THAT(recorded.captured[step], SizeIs(steps[step].size()));
    for (size_t r = 0; r < steps[step].size(); ++r) {
      const CapturedPosition& position = recorded.captured[step][r];
      EXPECT_EQ(recorded.sink.sequences[steps[step].sequence[r]].id, position.sequence.value);
      EXPECT_EQ(steps[step].position[r], position.position);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(steps[step].experts[r * 4 + i], position.router_ids[i]);
        EXPECT_NEAR(FloatFromHalf(steps[step].weights[r * 4 + i]), position.router_weights[i],
                    1e-3);
      }
    }
  }
}

TEST(RoutingRecorderTest, FeaturesAreWhatTheRouterSaw) {
  const Recorded recorded(true);
  const TraceShape& shape = recorded.sink.shape;
  EXPECT_EQ(shape.columns, kTraceColumnsKnown);
  EXPECT_EQ(shape.hidden, 32);
  for (const TraceRows& rows : recorded.sink.steps) {
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t layer = 0; layer < 2; ++layer) {
        // The chosen experts have the highest scores.
        std::vector<float> scores;
        for (size_t e = 0; e < 6; ++e) {
          scores.push_back(FloatFromHalf(rows.scores[r * 12 + layer * 6 + e]));
        }
        const uint16_t first = rows.experts[(r * 2 + layer) * 2];
        EXPECT_EQ(scores[first], *std::max_element(scores.begin(), scores.end()));
        // The experts have added something to what the router saw.
        double before = 0;
        double moved = 0;
        for (size_t h = 0; h < 32; ++h) {
          const size_t at = (r * 2 + layer) * 32 + h;
          const float seen = FloatFromHalf(rows.router_hidden[at]);
          before += seen * seen;
          moved += std::abs(FloatFromHalf(rows.expert_residual[at]) - seen);
        }
        EXPECT_GT(before, 0);
        EXPECT_GT(moved, 0);
      }
    }
  }
}

TEST(RoutingRecorderTest, AFailedWriteEndsTheRecordingAndNotTheRun) {
  const Recorded recorded(true, 1);
  EXPECT_EQ(recorded.recorder->status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(recorded.sink.steps, SizeIs(1));
  EXPECT_EQ(recorded.tokens, 5U);
}

}  // namespace
}  // namespace expertflow
