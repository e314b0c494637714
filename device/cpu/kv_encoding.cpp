#include "device/cpu/kv_encoding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "common/half.h"

namespace expertflow::cpu {
namespace {

constexpr float kStepsMax = 127;
// Adding and subtracting it rounds to an integer, to nearest even.
constexpr float kRounder = 0x1.8p23f;

// Returns the scale. Integers of a group that holds something not finite are 0, and its scale NaN.
float EncodeGroup(std::span<const float> values, int8_t* integers) {
  float largest = 0;
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    largest = std::max(largest, std::fabs(value));
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  const float scale = largest / kStepsMax;
  if (scale == 0) return 0;
  for (size_t i = 0; i < values.size(); ++i) {
    // A scale that is no normal number may be rounded by much.
    const float steps = std::clamp(values[i] / scale, -kStepsMax, kStepsMax);
    integers[i] = static_cast<int8_t>((steps + kRounder) - kRounder);
  }
  return scale;
}

}  // namespace

void EncodeKvHead(std::span<const float> values, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  if (dtype == DType::kBF16) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = BFloat16FromFloat(values[i]);
      std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
    }
    return;
  }
  CHECK(dtype == DType::kInt8);
  const size_t padded = (values.size() + kQuantisedGroup - 1) / kQuantisedGroup * kQuantisedGroup;
  std::memset(to, 0, padded);
  for (size_t begin = 0; begin < values.size(); begin += kQuantisedGroup) {
    const auto group = values.subspan(begin, std::min(kQuantisedGroup, values.size() - begin));
    const float scale = EncodeGroup(group, reinterpret_cast<int8_t*>(to + begin));
    std::memcpy(to + padded + begin / kQuantisedGroup * sizeof(scale), &scale, sizeof(scale));
  }
}

}  // namespace expertflow::cpu
