#include "model/arch/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace expertflow {
namespace {

double Mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// What one of the two objects says. Theta and the rotated share are there only in rope_parameters.
struct Scaling {
  std::optional<double> theta;
  std::optional<double> partial_rotary;
  double position_scale = 1;
  double amplitude = 1;
  std::optional<YarnConfig> yarn;
};

Status ReadYarn(const JsonConfig& json, int32_t context, Scaling* scaling) {
  YarnConfig yarn;
  ASSIGN_OR_RETURN(yarn.factor, json.Number("factor", 1.0, 1e6));
  ASSIGN_OR_RETURN(yarn.original_context,
                   json.NumberOr("original_max_position_embeddings", 1, 1 << 26, context));
  ASSIGN_OR_RETURN(yarn.beta_fast, json.NumberOr("beta_fast", 1e-3, 1e6, 32));
  ASSIGN_OR_RETURN(yarn.beta_slow, json.NumberOr("beta_slow", 1e-3, 1e6, 1));
  ASSIGN_OR_RETURN(yarn.truncate, json.BoolOr("truncate", true));
  ASSIGN_OR_RETURN(const double mscale, json.NumberOr("mscale", 0, 1e3, 0));
  ASSIGN_OR_RETURN(yarn.mscale_all_dim, json.NumberOr("mscale_all_dim", 0, 1e3, 0));
  if ((mscale > 0) != (yarn.mscale_all_dim > 0)) {
    return json.Error(mscale > 0 ? "mscale" : "mscale_all_dim",
                      "is supported only together with the other of mscale and mscale_all_dim: "
                      "published codes disagree about one alone");
  }
  scaling->amplitude = mscale > 0
                           ? Mscale(yarn.factor, mscale) / Mscale(yarn.factor, yarn.mscale_all_dim)
                           : Mscale(yarn.factor, 1);
  ASSIGN_OR_RETURN(scaling->amplitude,
                   json.NumberOr("attention_factor", 1e-6, 1e6, scaling->amplitude));
  scaling->yarn = yarn;
  return OkStatus();
}

Result<Scaling> ReadScaling(const JsonConfig& json, const char* key, const RopeRules& rules,
                            int32_t context) {
  Scaling scaling;
  ASSIGN_OR_RETURN(const std::string old_type, json.StringOr("type", ""));
  ASSIGN_OR_RETURN(const std::string new_type, json.StringOr("rope_type", old_type));
  if (!old_type.empty() && old_type != new_type) {
    return json.Error("rope_type", fmt::format("'{}' contradicts type '{}'", new_type, old_type));
  }
  const std::string type = new_type.empty() ? "default" : new_type;
  if (type == "linear") {
    ASSIGN_OR_RETURN(const double factor, json.Number("factor", 1.0, 1e6));
    scaling.position_scale = 1.0 / factor;
  } else if (type == "yarn") {
    RETURN_IF_ERROR(ReadYarn(json, context, &scaling));
  } else if (type != "default") {
    return json.Error(
        "rope_type",
        fmt::format("'{}' is not supported in {}; known are default, linear and yarn", type, key));
  }
  if (json.Has("rope_theta")) {
    ASSIGN_OR_RETURN(scaling.theta, json.Number("rope_theta", 1.0, 1e12));
  }
  if (rules.default_partial_rotary && json.Has("partial_rotary_factor")) {
    ASSIGN_OR_RETURN(scaling.partial_rotary, json.Number("partial_rotary_factor", 0.0, 1.0));
  }
  return scaling;
}

// Sets `*to` from the object's value, which must not contradict the top-level one.
Status Resolve(const JsonConfig& json, const JsonConfig& object, const char* key,
               std::optional<double> from, double* to) {
  if (!from) return OkStatus();
  if (json.Has(key) && *from != *to) {
    return object.Error(key, fmt::format("{} contradicts {}: {}", *from, key, *to));
  }
  *to = *from;
  return OkStatus();
}

// The pair, of `dim / 2`, that turns `rotations` times over the original context.
double PairWithRotations(const RopeConfig& config, double rotations, int32_t dim) {
  const double length = config.yarn->original_context;
  return dim * std::log(length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(config.theta));
}

// By which each pair's frequency is multiplied.
std::vector<double> FrequencyScales(const RopeConfig& config, int32_t dim) {
  std::vector<double> scales(static_cast<size_t>(dim / 2), config.position_scale);
  if (!config.yarn) return scales;
  const YarnConfig& yarn = *config.yarn;
  double low = PairWithRotations(config, yarn.beta_fast, dim);
  double high = PairWithRotations(config, yarn.beta_slow, dim);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < scales.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    scales[i] = ramp / yarn.factor + (1 - ramp);
  }
  return scales;
}

}  // namespace

double RopeConfig::AttentionFactor() const {
  if (!yarn || yarn->mscale_all_dim == 0) return 1;
  const double mscale = Mscale(yarn->factor, yarn->mscale_all_dim);
  return mscale * mscale;
}

Result<RopeConfig> ReadRopeConfig(const JsonConfig& config, const RopeRules& rules,
                                  int32_t context) {
  RopeConfig rope;
  ASSIGN_OR_RETURN(rope.theta, config.NumberOr("rope_theta", 1.0, 1e12, rules.default_theta));
  if (rules.default_partial_rotary) {
    ASSIGN_OR_RETURN(rope.partial_rotary, config.NumberOr("partial_rotary_factor", 0.0, 1.0,
                                                          *rules.default_partial_rotary));
  }
  std::optional<Scaling> first;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.Has(key)) continue;
    ASSIGN_OR_RETURN(const JsonConfig object, config.Object(key));
    ASSIGN_OR_RETURN(const Scaling scaling, ReadScaling(object, key, rules, context));
    if (first && (first->position_scale != scaling.position_scale ||
                  first->amplitude != scaling.amplitude || first->yarn != scaling.yarn ||
                  (first->theta && scaling.theta && first->theta != scaling.theta))) {
      return config.Error("rope_parameters", "contradicts rope_scaling; remove one of them");
    }
    RETURN_IF_ERROR(Resolve(config, object, "rope_theta", scaling.theta, &rope.theta));
    if (scaling.yarn && rope.theta <= 1) {
      return config.Error("rope_theta", "yarn needs one above 1");
    }
    RETURN_IF_ERROR(Resolve(config, object, "partial_rotary_factor", scaling.partial_rotary,
                            &rope.partial_rotary));
    rope.position_scale = scaling.position_scale;
    rope.amplitude = scaling.amplitude;
    rope.yarn = scaling.yarn;
    first = scaling;
  }
  return rope;
}

std::vector<float> RopeTable(const RopeConfig& config, int32_t rotary_dim, int32_t positions) {
  const int32_t half = rotary_dim / 2;
  std::vector<float> table(static_cast<size_t>(positions) * rotary_dim);
  std::vector<float> frequencies(half);
  const std::vector<double> scales = FrequencyScales(config, rotary_dim);
  for (int32_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * i / rotary_dim;
    frequencies[i] = static_cast<float>(scales[i] / std::pow(config.theta, exponent));
  }
  for (int32_t p = 0; p < positions; ++p) {
    float* row = table.data() + static_cast<size_t>(p) * rotary_dim;
    for (int32_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(p) * frequencies[i];
      row[i] = static_cast<float>(config.amplitude * std::cos(angle));
      row[half + i] = static_cast<float>(config.amplitude * std::sin(angle));
    }
  }
  return table;
}

}  // namespace expertflow
