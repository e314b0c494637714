#include "model/arch/workspace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_text.h"
#include "device/cpu/cpu_device.h"
#include "model/arch/model.h"

namespace expertflow {
namespace {

std::unique_ptr<Device> MakeDevice() {
  auto device = CreateCpuDevice({.threads = 1});
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return std::move(device).value();
}

TEST(Workspace, BuffersAreAlignedAndDisjoint) {
  const auto device = MakeDevice();
  Workspace workspace;
  workspace.Add("one", 1);
  workspace.Add("none", 0);
  workspace.Add("sixty-four", 64);
  workspace.Add("sixty-five", 65);
  EXPECT_EQ(workspace.bytes(), 256u + 0 + 256 + 512);
  ASSERT_TRUE(workspace.Allocate(*device).ok());
  float* one = workspace.Floats("one");
  EXPECT_EQ(workspace.Floats("sixty-four"), one + 64);
  EXPECT_EQ(workspace.Floats("sixty-five"), one + 128);
  EXPECT_EQ(static_cast<void*>(workspace.Ints("one")), one);
}

TEST(Workspace, TooLargeIsAnErrorThatNamesIt) {
  const auto device = MakeDevice();
  Workspace workspace;
  workspace.Add("huge", int64_t{1} << 50);
  const Status status = workspace.Allocate(*device);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("workspace of the forward pass"));
}

// FIELD_46: the bytes of the plan, counted by hand for the small config.
TEST(Workspace, FIELD_46_BytesOfTheForwardPass) {
  const auto made = testing::MakeFrom(testing::SmallConfig());
  ASSERT_TRUE(made.ok());
  const auto aligned = [](uint64_t floats) { return (floats * 4 + 255) / 256 * 256; };
  const uint64_t rows = 5;
  const uint64_t positions = 33;
  uint64_t expected = 3 * aligned(rows * 32)                 // residual, x, block_out
                      + 2 * aligned(rows * 4 * 8)            // q, attention
                      + 2 * aligned(rows * 2 * 8)            // k, v
                      + aligned(rows * 8) + aligned(rows)    // router, shared gate
                      + 2 * aligned(rows * 3)                // ids, weights
                      + aligned(rows * 3 * 32)               // expert outputs
                      + aligned(16 * 32) + aligned(16 * 50)  // rows of logits
                      + aligned(positions * 8);              // cosines and sines
  ModelLimits limits{.rows_max = 5, .positions_max = 33, .lookahead_max = 0};
  EXPECT_EQ((*made)->WorkspaceBytes(limits), expected);
  limits.lookahead_max = 2;
  expected += aligned(rows * 32) + aligned(2 * rows * 8);
  EXPECT_EQ((*made)->WorkspaceBytes(limits), expected);
}

}  // namespace
}  // namespace expertflow
