#include "expert_store/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace expertflow {
namespace {

constexpr size_t kChunk = 16;  // elements whose 4-bit integers share eight bytes

// Integers of one group, in [-limit, limit].
float QuantiseGroup(std::span<const float> values, int limit, int8_t* integers) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
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

Status QuantiseGroups(std::span<const float> values, DType dtype, std::span<uint8_t> out,
                      QuantisationError* error) {
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
    const float scale = QuantiseGroup(group, limit, integers);
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
