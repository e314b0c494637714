#include "expert_store/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace expertflow {
namespace {

constexpr size_t kChunk = 16;  // elements whose 4-bit integers share eight bytes

// The integers of a group in steps of `scale`, if they are exactly that and in [-limit - 1, limit].
bool AreSteps(std::span<const float> values, float scale, int limit, int8_t* integers) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float steps = std::nearbyint(values[i] / scale);
    if (steps * scale != values[i] || steps > static_cast<float>(limit) ||
        steps < -static_cast<float>(limit + 1)) {
      return false;
    }
    integers[i] = static_cast<int8_t>(steps);
  }
  return true;
}

// Integers of one group, in [-limit, limit] where they are no steps already.
float QuantiseGroup(std::span<const float> values, int limit, bool evenly_spaced,
                    int8_t* integers) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  for (int steps = 1; evenly_spaced && largest > 0 && steps <= limit + 1; ++steps) {
    const float scale = largest / static_cast<float>(steps);
    if (AreSteps(values, scale, limit, integers)) return scale;
  }
  const float scale = largest / static_cast<float>(limit);
  for (size_t i = 0; i < values.size(); ++i) {
    const float wanted = scale > 0 ? std::nearbyint(values[i] / scale) : 0;
    integers[i] = static_cast<int8_t>(
        std::clamp(wanted, -static_cast<float>(limit), static_cast<float>(limit)));
  }
  return scale;
}

}  // namespace

double QuantisationError::relative() const {
  return value_squares > 0 ? std::sqrt(error_squares / value_squares) : 0;
}

Status QuantiseGroups(std::span<const float> values, const QuantiseOptions& options,
                      std::span<uint8_t> out, QuantisationError* error) {
  const DType dtype = options.dtype;
  const int limit = dtype == DType::kInt4 ? 7 : 127;
  uint8_t* scales = out.data() + ScalesOffset(dtype, values.size());
  std::fill(out.begin(), out.end(), uint8_t{0});
  for (size_t begin = 0; begin < values.size(); begin += kQuantisedGroup) {
    const auto group = values.subspan(begin, kQuantisedGroup);
    const auto bad =
        std::find_if(group.begin(), group.end(), [](float value) { return !std::isfinite(value); });
    if (bad != group.end()) {
      return InvalidArgument(fmt::format("{} cannot be quantised", *bad));
    }
    int8_t integers[kQuantisedGroup];
    const float scale = QuantiseGroup(group, limit, options.evenly_spaced, integers);
    std::memcpy(scales + begin / kQuantisedGroup * sizeof(scale), &scale, sizeof(scale));
    for (size_t i = 0; i < kQuantisedGroup; ++i) {
      const double off = static_cast<double>(static_cast<float>(integers[i]) * scale) - group[i];
      error->error_squares += off * off;
      error->value_squares += static_cast<double>(group[i]) * group[i];
      error->error_max = std::max(error->error_max, std::fabs(off));
      if (dtype == DType::kInt8) {
        out[begin + i] = static_cast<uint8_t>(integers[i]);
        continue;
      }
      const size_t at = (begin + i) / kChunk * (kChunk / 2) + i % (kChunk / 2);
      const auto nibble = static_cast<uint8_t>(integers[i] + 8);
      out[at] |= static_cast<uint8_t>(i % kChunk < kChunk / 2 ? nibble : nibble << 4);
    }
  }
  return OkStatus();
}

}  // namespace expertflow
