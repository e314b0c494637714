#include "model/arch/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace expertflow {
namespace {

Result<RopeConfig> Read(const std::string& text) {
  ASSIGN_OR_RETURN(const JsonConfig config, JsonConfig::Parse(text, "config.json"));
  return ReadRopeConfig(config, 10000.0);
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
  } cases[] = {
      {{10000.0, 1.0}, 8, 64}, {{1e6, 1.0}, 128, 4096}, {{1e4, 0.25}, 6, 300}, {{5e5, 1.0}, 2, 10}};
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

}  // namespace
}  // namespace expertflow
