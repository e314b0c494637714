// Products with activations rounded to INT8 against their definition
// (device/cpu/kernels/integer.h), computed in plain C++: the same bits from every kernel set, for
// every shape, place in memory and number of rows and threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "tests/conformance/device_harness.h"
#include "tests/unit/device/random_matrices.h"

namespace expertflow {
namespace {

constexpr size_t kGroup = kQuantisedGroup;
constexpr DType kIntegerTypes[] = {DType::kInt8,  DType::kInt4, DType::kUInt4,
                                   DType::kMxfp4, DType::kQ4_1, DType::kQ5_1,
                                   DType::kQ4K,   DType::kQ5K,  DType::kQ6K};

// The scale and minimum of each group, and integers: a weight is scale * integer + minimum.
struct IntegerWeights {
  std::vector<float> scales;
  std::vector<float> minima;  // empty: there are none
  std::vector<int32_t> integers;
};

IntegerWeights IntegersOfBlocks(const QuantisedWeights& w, DType dtype) {
  IntegerWeights of;
  for (size_t i = 0; i < w.values.size(); ++i) {
    const BlockParts parts = GgufBlockParts(w.stored.data(), dtype, i);
    of.integers.push_back(parts.integer);
    if (i % kGroup != 0) continue;
    of.scales.push_back(static_cast<float>(parts.scale));
    if (dtype != DType::kQ6K) of.minima.push_back(static_cast<float>(parts.minimum));
  }
  return of;
}

IntegerWeights IntegersOf(const QuantisedWeights& w, DType dtype) {
  if (IsGgufBlocks(dtype)) return IntegersOfBlocks(w, dtype);
  IntegerWeights of;
  std::vector<uint8_t> unscaled = w.stored;
  uint8_t* scales = unscaled.data() + ScalesOffset(dtype, w.values.size());
  // e2m1 has halves: twice its value, and half the scale.
  const float one = dtype == DType::kMxfp4 ? 2 : 1;
  for (size_t g = 0; g < w.values.size() / kGroup; ++g) {
    float scale = 0;
    if (dtype == DType::kMxfp4) {
      scale = static_cast<float>(std::ldexp(1.0, scales[g] - 128));
      scales[g] = 128;
    } else {
      std::memcpy(&scale, scales + g * 4, sizeof(scale));
      std::memcpy(scales + g * 4, &one, sizeof(one));
    }
    of.scales.push_back(scale);
  }
  for (size_t i = 0; i < w.values.size(); ++i) {
    of.integers.push_back(
        static_cast<int32_t>(QuantisedValue(unscaled.data(), dtype, w.values.size(), i)));
  }
  return of;
}

struct RoundedGroup {
  float step = 0;
  int32_t integers[kGroup] = {};
};

RoundedGroup Round(std::span<const float> x) {
  RoundedGroup rounded;
  float largest = 0;
  for (const float value : x) {
    if (!std::isfinite(value)) {
      rounded.step = NAN;
      return rounded;
    }
    largest = std::max(largest, std::fabs(value));
  }
  if (largest < 0x1p-100f) return rounded;
  rounded.step = largest / 127.0f;
  const float inverse = 127.0f / largest;
  for (size_t i = 0; i < kGroup; ++i) {
    rounded.integers[i] = static_cast<int32_t>(std::nearbyintf(x[i] * inverse));
  }
  return rounded;
}

// One output: row `row` of w times x.
float Defined(std::span<const float> x, const IntegerWeights& w, size_t row) {
  const size_t groups = x.size() / kGroup;
  float lanes[16] = {};
  for (size_t g = 0; g < groups; ++g) {
    const RoundedGroup rounded = Round(x.subspan(g * kGroup, kGroup));
    const size_t at = row * groups + g;
    int32_t dot = 0, sum = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      dot += w.integers[at * kGroup + i] * rounded.integers[i];
      sum += rounded.integers[i];
    }
    float& lane = lanes[g % 16];
    lane = std::fmaf(static_cast<float>(dot), w.scales[at] * rounded.step, lane);
    if (w.minima.empty()) continue;
    lane = std::fmaf(static_cast<float>(sum), w.minima[at] * rounded.step, lane);
  }
  float quad[4];
  for (size_t i = 0; i < 4; ++i) {
    quad[i] = (lanes[i] + lanes[i + 8]) + (lanes[i + 4] + lanes[i + 12]);
  }
  return (quad[0] + quad[1]) + (quad[2] + quad[3]);
}

struct KernelSetting {
  std::string kernels;
  int32_t threads = 1;
};
void PrintTo(const KernelSetting& setting, std::ostream* out) {
  *out << setting.kernels << "_" << setting.threads;
}

class IntegerKernels : public testing::TestWithParam<KernelSetting> {
 protected:
  void SetUp() override {
    auto device = CreateCpuDevice(
        {.threads = GetParam().threads, .kernels = GetParam().kernels, .int8_activations = true});
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = std::move(device).value();
  }

  // x [m, cols] times rows [first, first + rows) of w [stored, cols], which lies where readable
  // memory ends, as near as its scales allow.
  void ExpectDefinition(DType dtype, const QuantisedWeights& w, const TestWeights* bias,
                        int32_t first, int32_t rows, int32_t cols, const std::vector<float>& x) {
    const auto width = static_cast<size_t>(cols);
    const size_t m = x.size() / width;
    const GuardedBytes weights(w.stored, alignof(float));
    const auto stored = static_cast<int32_t>(w.values.size() / width);
    std::vector<float> out(m * static_cast<size_t>(rows), NAN);
    LinearJob job;
    job.weight = WeightMatrix{weights.data(), dtype, stored, cols}.Rows(first, rows);
    if (bias != nullptr) job.bias = {bias->stored.data(), bias->dtype, rows};
    job.x = x.data();
    job.out = out.data();
    device_->ops().Linear({&job, 1}, static_cast<int32_t>(m));
    const IntegerWeights integers = IntegersOf(w, dtype);
    size_t different = 0;
    for (size_t i = 0; i < m; ++i) {
      for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
        float want = Defined(std::span(x).subspan(i * width, width), integers,
                             static_cast<size_t>(first) + r);
        if (bias != nullptr) want += bias->values[r];
        const float got = out[i * static_cast<size_t>(rows) + r];
        if (FloatBits(got) == FloatBits(want) || (std::isnan(got) && std::isnan(want))) continue;
        if (++different > 3) continue;
        ADD_FAILURE() << "row " << i << " output " << r << ": " << got << " instead of " << want;
      }
    }
    EXPECT_EQ(different, 0u) << DTypeName(dtype) << " " << rows << " x " << cols << ", " << m
                             << " rows";
  }

  std::unique_ptr<Device> device_;
};

TEST_P(IntegerKernels, EveryShapeHasTheDefinedBits) {
  struct Matrix {
    int32_t stored, first, rows, cols;
  };
  uint32_t seed = 1;
  for (const DType dtype : kIntegerTypes) {
    for (const Matrix& of : {Matrix{1, 0, 1, 32},
                             {16, 0, 16, 64},
                             {17, 0, 17, 96},
                             {40, 3, 37, 256},
                             {33, 0, 33, 512},
                             {20, 2, 18, 544},
                             {5, 0, 5, 1408},
                             {48, 0, 48, 1056},
                             {19, 1, 17, 768}}) {
      if (of.cols % static_cast<int32_t>(GroupElements(dtype)) != 0) continue;
      const size_t size = static_cast<size_t>(of.stored) * static_cast<size_t>(of.cols);
      const QuantisedWeights w = RandomQuantised(dtype, size, ++seed);
      for (const int32_t m : {1, 2, 5, 8, 9, 16, 17, 48, 49}) {
        const auto x = RandomFloats(static_cast<size_t>(m * of.cols), ++seed);
        const TestWeights bias = RandomWeights(DType::kBF16, static_cast<size_t>(of.rows), ++seed);
        ExpectDefinition(dtype, w, m % 2 == 0 ? &bias : nullptr, of.first, of.rows, of.cols, x);
      }
      ASSERT_FALSE(HasFailure());
    }
  }
}

// The largest sums that integers can have, of either sign.
TEST_P(IntegerKernels, TheLargestCodesAndActivationsFit) {
  constexpr int32_t kRows = 18, kCols = 768;
  for (const DType dtype : kIntegerTypes) {
    for (const uint8_t codes : {0x00, 0x77, 0x7f, 0x80, 0xff}) {
      QuantisedWeights w = RandomQuantised(dtype, kRows * kCols, 1);
      if (IsGgufBlocks(dtype)) {
        std::fill(w.stored.begin(), w.stored.end(), codes);
        std::mt19937 random(2);
        SetBlockScales(dtype, random, &w.stored);
      } else {
        std::fill_n(w.stored.begin(), kRows * kCols * CodeBits(dtype) / 8, codes);
      }
      for (const size_t m : {1u, 5u, 50u}) {
        std::vector<float> x(m * kCols);
        for (size_t i = 0; i < x.size(); ++i) x[i] = i / kCols % 2 == 0 ? 3.0f : -3.0f;
        ExpectDefinition(dtype, w, nullptr, 0, kRows, kCols, x);
      }
    }
  }
}

// A row of one group for each, so that no scale hides another.
TEST_P(IntegerKernels, EveryMxfp4ScaleIsTaken) {
  constexpr int32_t kRows = 255;
  constexpr size_t kSize = size_t{kRows} * kGroup;
  QuantisedWeights w = RandomQuantised(DType::kMxfp4, kSize, 1);
  uint8_t* scales = w.stored.data() + ScalesOffset(DType::kMxfp4, kSize);
  for (int32_t row = 0; row < kRows; ++row) scales[row] = static_cast<uint8_t>(row);
  for (const size_t m : {1u, 50u}) {
    for (const float size : {0x1p-60f, 1.0f, 0x1p+60f}) {
      const auto x = RandomFloats(m * kGroup, 2, size);
      ExpectDefinition(DType::kMxfp4, w, nullptr, 0, kRows, kGroup, x);
    }
  }
}

TEST_P(IntegerKernels, WhatIsNotFiniteStaysInItsRowAndWhatIsTinyIsZero) {
  constexpr int32_t kRows = 18, kCols = 768;
  for (const DType dtype : kIntegerTypes) {
    const QuantisedWeights w = RandomQuantised(dtype, kRows * kCols, 1);
    for (const size_t m : {6u, 50u}) {
      auto x = RandomFloats(m * kCols, 2);
      x[3] = std::numeric_limits<float>::infinity();
      x[kCols + 767] = NAN;
      for (size_t i = 0; i < kCols; ++i) {
        x[2 * kCols + i] *= 0x1p-101f;
        x[3 * kCols + i] = 0;
        x[4 * kCols + i] *= 0x1p+100f;
        x[5 * kCols + i] *= i % 2 == 0 ? 0x1p-99f : 0x1p-130f;
      }
      ExpectDefinition(dtype, w, nullptr, 0, kRows, kCols, x);
      std::vector<float> out(m * kRows);
      const LinearJob job{{w.stored.data(), dtype, kRows, kCols}, {}, x.data(), out.data()};
      device_->ops().Linear({&job, 1}, static_cast<int32_t>(m));
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i < 2 * kRows) << i;
    }
  }
}

// Experts with few rows and many, gate and up of different types, other weights as without it.
TEST_P(IntegerKernels, RowsOfExpertsDoNotDependOnOthers) {
  constexpr int32_t kHidden = 160, kWide = 224;
  constexpr size_t kSize = size_t{kHidden} * kWide;
  const QuantisedWeights gate = RandomQuantised(DType::kInt8, kSize, 1);
  const TestWeights up = RandomWeights(DType::kF32, kSize, 2);
  const QuantisedWeights down = RandomQuantised(DType::kInt4, kSize, 3);
  const MlpWeights mlp{{gate.stored.data(), DType::kInt8, kWide, kHidden},
                       {up.stored.data(), DType::kF32, kWide, kHidden},
                       {down.stored.data(), DType::kInt4, kHidden, kWide}};
  constexpr size_t kRows = 60;
  const auto x = RandomFloats(kRows * kHidden, 4);
  const auto run = [&](Ops& ops, size_t first, size_t m) {
    std::vector<ExpertRow> rows;
    for (size_t i = 0; i < m; ++i) {
      rows.push_back({static_cast<int32_t>(i), static_cast<int32_t>(i)});
    }
    std::vector<float> out(m * kHidden);
    const ExpertJob job{mlp, rows};
    ops.ExpertMlp({&job, 1}, x.data() + first * kHidden, out.data());
    return Bits(out);
  };
  const auto together = run(device_->ops(), 0, kRows);
  for (const size_t m : {1u, 4u, 20u}) {
    for (size_t first = 0; first + m <= kRows; first += m) {
      const auto at = together.begin() + static_cast<std::ptrdiff_t>(first * kHidden);
      EXPECT_EQ(run(device_->ops(), first, m),
                std::vector<uint32_t>(at, at + static_cast<std::ptrdiff_t>(m * kHidden)));
    }
  }
  auto floats = CreateCpuDevice({.threads = 1, .kernels = GetParam().kernels});
  ASSERT_TRUE(floats.ok());
  EXPECT_NE(run((*floats)->ops(), 0, kRows), together);
  std::vector<float> plain(kWide), rounded(kWide);
  LinearJob job{mlp.up, {}, x.data(), plain.data()};
  (*floats)->ops().Linear({&job, 1}, 1);
  job.out = rounded.data();
  device_->ops().Linear({&job, 1}, 1);
  EXPECT_EQ(Bits(plain), Bits(rounded));
}

TEST(IntegerProducts, TheArithmeticNamesThem) {
  const auto device = CreateCpuDevice({.threads = 1, .int8_activations = true});
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->properties().arithmetic, "16 lanes, INT8 activations");
}

INSTANTIATE_TEST_SUITE_P(Settings, IntegerKernels,
                         testing::Values(KernelSetting{"scalar", 1}, KernelSetting{"avx2", 1},
                                         KernelSetting{"avx2", 2}, KernelSetting{"avx512", 1},
                                         KernelSetting{"avx512", 4}, KernelSetting{"amx", 1},
                                         KernelSetting{"amx", 2}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace expertflow
