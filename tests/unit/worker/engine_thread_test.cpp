#include "worker/engine_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>

#include "tests/unit/worker/small_engine.h"

namespace expertflow {
namespace {

using testing::Request;
using testing::SmallEngineOptions;
using testing::SmallModel;

class EngineThreadTest : public ::testing::Test {
 protected:
  void Make(const SmallModel& model, const SmallEngineOptions& options,
            uint64_t outgoing_bytes_max = kOutgoingBytesMax) {
    device_ = testing::MakeFaultDevice();
    thread_.emplace(
        testing::MakeEngine(model, *device_, options), [this] { ++wakes_; }, outgoing_bytes_max);
  }
  // Takes messages until `done`; false when that takes too long.
  bool WaitUntil(const std::function<bool()>& done, bool take = true) {
    const Deadline deadline = Deadline::AfterMs(20'000);
    for (;;) {
      if (take) thread_->TakeMessages(&messages_);
      if (done()) return true;
      if (deadline.Passed()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::vector<TokenEvent> Tokens(uint64_t id) const {
    std::vector<TokenEvent> tokens;
    for (const Message& message : messages_) {
      const auto* report = std::get_if<StepReport>(&message);
      if (report == nullptr) continue;
      for (const TokenEvent& event : report->tokens) {
        if (event.sequence.value == id) tokens.push_back(event);
      }
    }
    return tokens;
  }
  bool Finished(uint64_t id) const {
    const auto tokens = Tokens(id);
    return !tokens.empty() && tokens.back().finish != FinishReason::kNone;
  }
  template <typename T>
  size_t Count() const {
    size_t count = 0;
    for (const Message& message : messages_) count += std::holds_alternative<T>(message) ? 1 : 0;
    return count;
  }

  std::unique_ptr<testing::FaultDevice> device_;
  std::atomic<int> wakes_{0};
  std::vector<Message> messages_;
  std::optional<EngineThread> thread_;
};

TEST_F(EngineThreadTest, MessagesArrive) {
  const SmallModel model;
  Make(model, {});
  EXPECT_FALSE(thread_->busy());
  StartSequence first = Request(1, {5, 6}, 9);
  first.capture_logits = true;
  thread_->Start(first);
  thread_->Start(Request(2, {7}, 4));
  ASSERT_TRUE(WaitUntil([&] { return Finished(1) && Finished(2); }));
  EXPECT_EQ(Tokens(1).size(), 9u);
  EXPECT_EQ(Tokens(2).size(), 4u);
  EXPECT_EQ(Count<CapturedPosition>(), 2u + 8);
  EXPECT_GE(wakes_, 1);
  EXPECT_TRUE(WaitUntil([&] { return !thread_->busy(); }));
  EXPECT_EQ(thread_->steps(), thread_->stats().steps);
  EXPECT_EQ(thread_->stats().prefill_tokens, 3u);
  // Steps are numbered in order.
  uint64_t last = 0;
  for (const Message& message : messages_) {
    if (const auto* report = std::get_if<StepReport>(&message)) {
      EXPECT_GT(report->step, last);
      last = report->step;
    }
  }
}

TEST_F(EngineThreadTest, WhatCannotStartIsReportedAndTheRestGoesOn) {
  const SmallModel model;
  Make(model, {});
  thread_->Start(Request(1, {}, 4));
  thread_->Start(Request(2, {5}, 4));
  ASSERT_TRUE(WaitUntil([&] { return Finished(2) && Count<SequenceFailed>() == 1; }));
  for (const Message& message : messages_) {
    if (const auto* failed = std::get_if<SequenceFailed>(&message)) {
      EXPECT_EQ(failed->sequence.value, 1u);
      EXPECT_EQ(failed->code, static_cast<uint8_t>(StatusCode::kInvalidArgument));
      EXPECT_FALSE(failed->message.empty());
    }
  }
}

TEST_F(EngineThreadTest, CancelEndsASequence) {
  const SmallModel model({.context = 100'000});
  Make(model, {.kv_blocks = 4000});
  thread_->Start(Request(1, {5}, 60'000));
  ASSERT_TRUE(WaitUntil([&] { return !Tokens(1).empty(); }));
  thread_->Cancel({1});
  ASSERT_TRUE(WaitUntil([&] { return !thread_->busy(); }));
  EXPECT_FALSE(Finished(1));
  EXPECT_EQ(thread_->stats().sequences, 0u);
  thread_->Start(Request(2, {5}, 3));
  EXPECT_TRUE(WaitUntil([&] { return Finished(2); }));
}

// The sequence would take minutes.
TEST_F(EngineThreadTest, StopsWhileBusy) {
  const SmallModel model({.context = 100'000});
  Make(model, {.kv_blocks = 4000});
  thread_->Start(Request(1, {5}, 60'000));
  ASSERT_TRUE(WaitUntil([&] { return Tokens(1).size() >= 2; }));
  thread_.reset();
  EXPECT_LT(wakes_, 30'000);
}

// 64 KiB of logits a position, one position a step: more than 2 MiB must not pile up.
class BackPressureTest : public EngineThreadTest {
 protected:
  static constexpr uint32_t kPrompt = 40;
  static constexpr uint64_t kStepsUntilFull = 32;

  BackPressureTest() : model_({.layers = 1, .vocab = 1 << 14, .hidden = 4}) {
    Make(model_, {.prefill_tokens = 1}, 2 << 20);
    StartSequence start = Request(1, std::vector<int32_t>(kPrompt, 5), 2);
    start.capture_logits = true;
    thread_->Start(start);
  }

  const SmallModel model_;
};

TEST_F(BackPressureTest, UntakenMessagesStopTheEngine) {
  ASSERT_TRUE(WaitUntil([&] { return thread_->steps() >= kStepsUntilFull; }, false));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(thread_->steps(), kStepsUntilFull);
  EXPECT_TRUE(thread_->busy());
  ASSERT_TRUE(WaitUntil([&] { return Finished(1); }));
  EXPECT_EQ(Count<CapturedPosition>(), kPrompt + 1);
}

// Whoever cancels pays for the step in progress at most.
TEST_F(BackPressureTest, ACancelledSequenceTakesNoFurtherStep) {
  ASSERT_TRUE(WaitUntil([&] { return thread_->steps() >= kStepsUntilFull; }, false));
  EXPECT_GT(thread_->stats().kv_blocks_used, 0u);
  thread_->Cancel({1});
  ASSERT_TRUE(WaitUntil([&] { return !thread_->busy(); }));
  EXPECT_EQ(Count<CapturedPosition>(), kStepsUntilFull);
  EXPECT_EQ(thread_->stats().kv_blocks_used, 0u);
}

TEST_F(BackPressureTest, StopsWhileItWaits) {
  ASSERT_TRUE(WaitUntil([&] { return thread_->steps() >= kStepsUntilFull; }, false));
  thread_.reset();
}

}  // namespace
}  // namespace expertflow
