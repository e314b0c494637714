// Rotary position embedding: angles by position, as config.json describes them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {

struct RopeConfig {
  double theta = 10000.0;
  double position_scale = 1.0;  // linear scaling: angles are divided by the config's factor
};

// Reads rope_theta, rope_scaling and rope_parameters (both spellings are in use). Types other than
// "default" and "linear" are refused by name.
Result<RopeConfig> ReadRopeConfig(const JsonConfig& config, double default_theta);

// [positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines. The angle of pair i at
// position p is p * theta^(-2i / rotary_dim), in float32 as the reference computes it.
std::vector<float> RopeTable(const RopeConfig& config, int32_t rotary_dim, int32_t positions);

}  // namespace expertflow
