// Rotary position embedding: angles by position, as config.json describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/status.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {

// Yarn: slow pairs are interpolated, fast ones are left, with a ramp between.
struct YarnConfig {
  double factor = 1;
  double original_context = 0;  // the length before scaling
  double beta_fast = 32;        // rotations over that length from which a pair is left alone
  double beta_slow = 1;         // and up to which it is interpolated
  bool truncate = true;         // the ramp's ends are whole pairs
  double mscale_all_dim = 0;  // DeepSeek: the attention scale has this share of the mscale, squared

  bool operator==(const YarnConfig&) const = default;
};

struct RopeConfig {
  double theta = 10000.0;
  double position_scale = 1.0;  // linear scaling: angles are divided by the config's factor
  double amplitude = 1.0;       // of the cosines and sines
  double partial_rotary = 1.0;  // the share of a head that is rotated
  std::optional<YarnConfig> yarn;

  // By which the attention scale is to be multiplied (1 without yarn's mscale_all_dim).
  double AttentionFactor() const;
};

struct RopeRules {
  double default_theta = 10000.0;
  std::optional<double> default_partial_rotary;  // absent: the family rotates whole heads
};

// Reads rope_theta, partial_rotary_factor, rope_scaling and rope_parameters (both spellings are in
// use). Types other than "default", "linear" and "yarn" are refused by name, and so is a setting
// that is there twice with two meanings. `context` is the length of untouched positions that yarn
// assumes when the config does not say.
Result<RopeConfig> ReadRopeConfig(const JsonConfig& config, const RopeRules& rules,
                                  int32_t context);

// [positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines. Without scaling the angle of
// pair i at position p is p * theta^(-2i / rotary_dim), in float32 as the reference computes it.
std::vector<float> RopeTable(const RopeConfig& config, int32_t rotary_dim, int32_t positions);

}  // namespace expertflow
