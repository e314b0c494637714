#include "model/arch/rope.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace expertflow {
namespace {

// `scaling` is either object; its type has two spellings.
Status ReadScaling(const JsonConfig& scaling, const char* key, RopeConfig* rope) {
  ASSIGN_OR_RETURN(const std::string old_type, scaling.StringOr("type", "default"));
  ASSIGN_OR_RETURN(const std::string type, scaling.StringOr("rope_type", old_type));
  if (type == "linear") {
    ASSIGN_OR_RETURN(const double factor, scaling.Number("factor", 1.0, 1e6));
    rope->position_scale = 1.0 / factor;
  } else if (type != "default") {
    return scaling.Error(
        "rope_type",
        fmt::format("'{}' is not supported in {}; known are default and linear", type, key));
  }
  ASSIGN_OR_RETURN(rope->theta, scaling.NumberOr("rope_theta", 1.0, 1e12, rope->theta));
  return OkStatus();
}

}  // namespace

Result<RopeConfig> ReadRopeConfig(const JsonConfig& config, double default_theta) {
  RopeConfig rope;
  ASSIGN_OR_RETURN(rope.theta, config.NumberOr("rope_theta", 1.0, 1e12, default_theta));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.Has(key)) continue;
    ASSIGN_OR_RETURN(const JsonConfig scaling, config.Object(key));
    RETURN_IF_ERROR(ReadScaling(scaling, key, &rope));
  }
  return rope;
}

std::vector<float> RopeTable(const RopeConfig& config, int32_t rotary_dim, int32_t positions) {
  const int32_t half = rotary_dim / 2;
  std::vector<float> table(static_cast<size_t>(positions) * rotary_dim);
  std::vector<float> frequencies(half);
  for (int32_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * i / rotary_dim;
    frequencies[i] = static_cast<float>(config.position_scale / std::pow(config.theta, exponent));
  }
  for (int32_t p = 0; p < positions; ++p) {
    float* row = table.data() + static_cast<size_t>(p) * rotary_dim;
    for (int32_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies[i];
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace expertflow
