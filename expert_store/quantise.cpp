#include "expert_store/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/small_floats.h"

namespace expertflow {
namespace {

constexpr size_t kChunk = 16;  // elements whose 4-bit codes share eight bytes
constexpr int kUInt4Steps = 15;

// A group's codes as integers or bits (GroupedCodes), and its scale.
struct Group {
  int8_t codes[kQuantisedGroup] = {};
  float scale = 0;

  float ValueAt(size_t i, DType dtype) const {
    const auto bits = static_cast<uint8_t>(codes[i]);
    switch (dtype) {
      case DType::kMxfp4: return kE2m1[bits] * scale;
      case DType::kFp8: return FloatFromE4m3(bits) * scale;
      default: return static_cast<float>(codes[i]) * scale;
    }
  }
};

float LargestOf(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Steps of `scale`, held in [low, high].
void RoundToSteps(std::span<const float> values, float low, float high, Group* group) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float steps = group->scale > 0 ? std::nearbyint(values[i] / group->scale) : 0;
    group->codes[i] = static_cast<int8_t>(std::clamp(steps, low, high));
  }
}

Group Symmetric(std::span<const float> values, float limit) {
  Group group;
  group.scale = LargestOf(values) / limit;
  RoundToSteps(values, -limit, limit, &group);
  return group;
}

Group Asymmetric(std::span<const float> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float smallest = std::min(*low, 0.0f), largest = std::max(*high, 0.0f);
  Group group;
  group.scale = largest / kUInt4Steps - smallest / kUInt4Steps;
  const float zero = group.scale > 0 ? std::nearbyint(-smallest / group.scale) : 0;
  RoundToSteps(values, -zero, static_cast<float>(kUInt4Steps) - zero, &group);
  return group;
}

Group Mxfp4WithScale(std::span<const float> values, float scale, double* error_squares) {
  Group group;
  group.scale = scale;
  *error_squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t bits = E2m1FromFloat(values[i] / scale);
    group.codes[i] = static_cast<int8_t>(bits);
    const double off = static_cast<double>(kE2m1[bits]) * scale - values[i];
    *error_squares += off * off;
  }
  return group;
}

Group Mxfp4(std::span<const float> values) {
  const float largest = LargestOf(values);
  // 6 * 2^125 is the largest number that both scales can hold.
  // Nothing but zeros: a scale that kernels multiply with at full speed.
  const int exponent = largest > 0 ? std::clamp(std::ilogb(largest) - 2, -127, 124) : 0;
  double error = 0, error_of_double = 0;
  const Group group = Mxfp4WithScale(values, std::ldexp(1.0f, exponent), &error);
  const Group wider = Mxfp4WithScale(values, std::ldexp(1.0f, exponent + 1), &error_of_double);
  return error_of_double < error ? wider : group;
}

Group Fp8(std::span<const float> values) {
  Group group;
  group.scale = LargestOf(values) / kE4m3Max;
  for (size_t i = 0; i < values.size() && group.scale > 0; ++i) {
    group.codes[i] = static_cast<int8_t>(E4m3FromFloat(values[i] / group.scale));
  }
  return group;
}

Group QuantiseGroup(std::span<const float> values, DType dtype) {
  switch (dtype) {
    case DType::kInt8: return Symmetric(values, 127);
    case DType::kInt4: return Symmetric(values, 7);
    case DType::kUInt4: return Asymmetric(values);
    case DType::kMxfp4: return Mxfp4(values);
    case DType::kFp8: return Fp8(values);
    default: break;
  }
  CHECK(IsQuantised(dtype));
  return {};
}

// Codes of 4 bits. REQUIRES: `out` is zero there
void PlaceNibbles(std::span<const int8_t> codes, int offset, std::span<uint8_t> out) {
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto nibble = static_cast<uint8_t>(codes[i] + offset);
    const size_t at = i / kChunk * (kChunk / 2) + i % (kChunk / 2);
    out[at] |= static_cast<uint8_t>(i % kChunk < kChunk / 2 ? nibble : nibble << 4);
  }
}

void PlaceGroup(std::span<const int8_t> codes, float scale, DType dtype, size_t index,
                uint64_t elements, std::span<uint8_t> out) {
  const size_t begin = index * kQuantisedGroup;
  uint8_t* scales = out.data() + ScalesOffset(dtype, elements);
  if (dtype == DType::kMxfp4) {
    // A power of two from 2^-127 on: the exponent of its bits, or the one number below 2^-126.
    scales[index] = static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
  } else {
    std::memcpy(scales + index * sizeof(scale), &scale, sizeof(scale));
  }
  if (CodeBits(dtype) == 8) {
    std::memcpy(out.data() + begin, codes.data(), codes.size());
    return;
  }
  int offset = dtype == DType::kInt4 ? 8 : 0;
  if (dtype == DType::kUInt4) {
    offset = -std::min<int>(*std::min_element(codes.begin(), codes.end()), 0);
    out[ZerosOffset(elements) + index] = static_cast<uint8_t>(offset);
  }
  PlaceNibbles(codes, offset, out.subspan(begin / 2));
}

}  // namespace

double QuantisationError::relative() const {
  return value_squares > 0 ? std::sqrt(error_squares / value_squares) : 0;
}

Status QuantiseGroups(std::span<const float> values, DType dtype, std::span<uint8_t> out,
                      QuantisationError* error) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  for (size_t begin = 0; begin < values.size(); begin += kQuantisedGroup) {
    const auto part = values.subspan(begin, kQuantisedGroup);
    const auto bad =
        std::find_if(part.begin(), part.end(), [](float value) { return !std::isfinite(value); });
    if (bad != part.end()) return InvalidArgument(fmt::format("{} cannot be quantised", *bad));
    const Group group = QuantiseGroup(part, dtype);
    PlaceGroup(group.codes, group.scale, dtype, begin / kQuantisedGroup, values.size(), out);
    for (size_t i = 0; i < part.size(); ++i) {
      const double off = static_cast<double>(group.ValueAt(i, dtype)) - part[i];
      error->error_squares += off * off;
      error->value_squares += static_cast<double>(part[i]) * part[i];
      error->error_max = std::max(error->error_max, std::fabs(off));
    }
  }
  return OkStatus();
}

void PlaceGroups(std::span<const int8_t> codes, std::span<const float> scales, DType dtype,
                 std::span<uint8_t> out) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  for (size_t i = 0; i < scales.size(); ++i) {
    PlaceGroup(codes.subspan(i * kQuantisedGroup, kQuantisedGroup), scales[i], dtype, i,
               codes.size(), out);
  }
}

}  // namespace expertflow
