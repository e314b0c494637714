#include "model/arch/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace expertflow {
namespace {

Result<RopeConfig> Read(const std::string& text) {
  ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(text, "config.json"));
  return ReadRopeConfig(config, {}, 4096);
}

void ExpectRope(const std::string& text, double theta, double scale) {
  const auto rope = Read(text);
  ASSERT_TRUE(rope.ok()) << text << ": " << rope.status().ToString();
  EXPECT_EQ(rope->theta, theta) << text;
  EXPECT_EQ(rope->position_scale, scale) << text;
}

TEST(Rope, ReadsBothSpellings) {
  ExpectRope("{}", 10000, 1);
  ExpectRope(R"({"rope_theta": 1000000})", 1e6, 1);
  ExpectRope(R"({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}})", 5e5, 0.25);
  ExpectRope(R"({"rope_scaling": {"rope_type": "linear", "factor": 8.0}})", 10000, 0.125);
  ExpectRope(R"({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2}})", 10000,
             0.5);
  ExpectRope(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 2e6}})", 2e6, 1);
  ExpectRope(R"({"rope_parameters": {"type": "linear", "factor": 2, "rope_theta": 3e6}})", 3e6,
             0.5);
}

// Angles are float32 as in the reference: the error of an angle is that of two roundings.
TEST(Rope, TableAgainstDoublePrecision) {
  const struct {
    RopeConfig config;
    int32_t dim;
    int32_t positions;
  } cases[] = {{{.theta = 10000.0}, 8, 64},
               {{.theta = 1e6}, 128, 4096},
               {{.theta = 1e4, .position_scale = 0.25}, 6, 300},
               {{.theta = 5e5}, 2, 10}};
  for (const auto& [config, dim, positions] : cases) {
    const auto table = RopeTable(config, dim, positions);
    ASSERT_EQ(table.size(), static_cast<size_t>(dim) * positions);
    for (int32_t p = 0; p < positions; ++p) {
      const float* row = table.data() + static_cast<size_t>(p) * dim;
      for (int32_t i = 0; i < dim / 2; ++i) {
        const double angle =
            p * config.position_scale * std::exp(-2.0 * i / dim * std::log(config.theta));
        const double tolerance = 1e-7 + angle * 1.3e-7;
        ASSERT_NEAR(row[i], std::cos(angle), tolerance) << p << ", " << i;
        ASSERT_NEAR(row[dim / 2 + i], std::sin(angle), tolerance) << p << ", " << i;
      }
    }
  }
}

// DeepSeek-V2-Lite's settings: the pairs that turn 32 times and once over 4096 positions are 10.04
// and 22.06 (worked out apart), so pairs up to 10 stay, and those from 23 turn 40 times slower.
TEST(Rope, YarnLeavesFastPairsAndSlowsDownSlowOnes) {
  const auto rope = Read(R"({"rope_theta": 10000, "rope_scaling": {"beta_fast": 32, "beta_slow": 1,
    "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096, "type": "yarn"}})");
  ASSERT_TRUE(rope.ok()) << rope.status().ToString();
  EXPECT_EQ(rope->amplitude, 1);
  const double mscale = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_NEAR(rope->AttentionFactor(), mscale * mscale, 1e-12);
  const auto table = RopeTable(*rope, 64, 2);
  for (int32_t i = 0; i < 32; ++i) {
    const double plain = std::pow(10000.0, -2.0 * i / 64);
    const double ramp = i <= 10 ? 0 : i >= 23 ? 1 : (i - 10) / 13.0;
    const double angle = plain * (ramp / 40 + 1 - ramp);
    EXPECT_NEAR(table[64 + i], std::cos(angle), 2e-7) << i;
    EXPECT_NEAR(table[96 + i], std::sin(angle), 2e-7) << i;
  }
}

// gpt-oss: the ramp's ends are no whole pairs, and cosines and sines are scaled.
TEST(Rope, YarnWithoutTruncationScalesTheTable) {
  const auto rope = Read(R"({"rope_theta": 150000, "rope_parameters": {"rope_type": "yarn",
    "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
    "original_max_position_embeddings": 4096}})");
  ASSERT_TRUE(rope.ok()) << rope.status().ToString();
  const double amplitude = 0.1 * std::log(32.0) + 1;
  EXPECT_NEAR(rope->amplitude, amplitude, 1e-12);
  EXPECT_EQ(rope->AttentionFactor(), 1);
  const auto table = RopeTable(*rope, 64, 2);
  // Pair at which the angle of position 4096 is 32 (one) times 2 pi.
  const auto pair = [](double turns) {
    return 32 * std::log(4096 / (turns * 2 * M_PI)) / std::log(150000.0);
  };
  const double low = pair(32), high = pair(1);
  EXPECT_NEAR(low, 8.09, 0.01);
  EXPECT_NEAR(high, 17.40, 0.01);
  for (int32_t i = 0; i < 32; ++i) {
    const double ramp = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
    const double angle = std::pow(150000.0, -2.0 * i / 64) * (ramp / 32 + 1 - ramp);
    EXPECT_NEAR(table[64 + i], amplitude * std::cos(angle), 3e-7) << i;
    EXPECT_NEAR(table[96 + i], amplitude * std::sin(angle), 3e-7) << i;
  }
}

TEST(Rope, AnAttentionFactorOfTheConfigGoesFirst) {
  const auto rope =
      Read(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}})");
  ASSERT_TRUE(rope.ok()) << rope.status().ToString();
  EXPECT_EQ(rope->amplitude, 1.5);
  EXPECT_EQ(rope->yarn->original_context, 4096);
}

}  // namespace
}  // namespace expertflow
