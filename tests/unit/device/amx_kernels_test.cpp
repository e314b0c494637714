// The kernels 'amx' against their definition (device/cpu/kernels/amx.cpp), computed in plain C++:
// the same bits for every shape, place in memory and number of rows and threads. Skips where the
// machine has no AMX.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "tests/conformance/device_harness.h"
#include "tests/unit/device/random_matrices.h"

namespace expertflow {
namespace {

constexpr int kChunk = 32;

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
float CutOff(float x) {
  return FloatOf(FloatBits(x) & 0xffff0000u);
}
// Denormals count as zero.
float Flush(float x) {
  return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x;
}

// One part of one dot product.
float TileSum(const std::vector<float>& x, const float* w) {
  float sum = 0;
  for (size_t chunk = 0; chunk < x.size(); chunk += kChunk) {
    float lanes[2] = {};
    for (size_t k = chunk; k < std::min(x.size(), chunk + kChunk); ++k) {
      float& lane = lanes[k % 2];
      lane = Flush(std::fmaf(Flush(w[k]), Flush(x[k]), lane));
    }
    sum = Flush(sum + Flush(lanes[0] + lanes[1]));
  }
  return sum;
}

float Defined(const float* x, const float* w, size_t cols) {
  std::vector<float> high(cols), middle(cols), low(cols);
  for (size_t k = 0; k < cols; ++k) {
    if (!std::isfinite(x[k])) {
      high[k] = x[k];
      continue;
    }
    high[k] = CutOff(x[k]);
    middle[k] = CutOff(x[k] - high[k]);
    low[k] = (x[k] - high[k]) - middle[k];
  }
  return TileSum(high, w) + (TileSum(middle, w) + TileSum(low, w));
}

// Values that are exact in bf16, and what is stored for them.
TestWeights Bf16Weights(const std::vector<float>& values) {
  TestWeights weights;
  weights.dtype = DType::kBF16;
  weights.stored.resize(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    weights.values.push_back(CutOff(values[i]));
    const auto bits = static_cast<uint16_t>(FloatBits(values[i]) >> 16);
    std::memcpy(weights.stored.data() + 2 * i, &bits, 2);
  }
  return weights;
}

// Of both signs, 2^-range to 1.
std::vector<float> WideFloats(size_t size, uint32_t seed, int range) {
  std::mt19937 random(seed);
  std::vector<float> values(size);
  for (float& value : values) {
    const float fraction = 1.0f + static_cast<float>(random() >> 9) * 0x1p-23f;
    value = std::ldexp(fraction, -1 - static_cast<int>(random() % static_cast<uint32_t>(range)));
    if (random() % 2 == 0) value = -value;
  }
  return values;
}

class AmxKernels : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CreateCpuDevice({.threads = 2, .kernels = "amx"});
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = std::move(device).value();
  }

  // x [m, cols] times w [rows, cols]. The weights end where readable memory ends, so they begin
  // anywhere; x begins `offset` elements past aligned memory.
  std::vector<float> Multiply(const TestWeights& w, const TestWeights* bias, int32_t rows,
                              int32_t cols, const std::vector<float>& x, size_t offset) {
    const auto m = static_cast<int32_t>(x.size() / static_cast<size_t>(cols));
    const GuardedBytes weights(w.stored);
    DeviceArray<float> activations(*device_, offset + x.size());
    std::copy(x.begin(), x.end(), activations.data() + offset);
    std::vector<float> out(static_cast<size_t>(m) * static_cast<size_t>(rows), NAN);
    LinearJob job;
    job.weight = {weights.data(), DType::kBF16, rows, cols};
    if (bias != nullptr) job.bias = {bias->stored.data(), bias->dtype, rows};
    job.x = activations.data() + offset;
    job.out = out.data();
    device_->ops().Linear({&job, 1}, m);
    return out;
  }

  void ExpectDefinition(const TestWeights& w, const TestWeights* bias, int32_t rows, int32_t cols,
                        const std::vector<float>& x, size_t offset) {
    const auto width = static_cast<size_t>(cols);
    const auto out = Multiply(w, bias, rows, cols, x, offset);
    size_t different = 0;
    for (size_t i = 0; i < x.size() / width; ++i) {
      for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
        float want = Defined(x.data() + i * width, w.values.data() + r * width, width);
        if (bias != nullptr) want += bias->values[r];
        const float got = out[i * static_cast<size_t>(rows) + r];
        if (FloatBits(got) == FloatBits(want) || (std::isnan(got) && std::isnan(want))) continue;
        if (++different <= 3)
          ADD_FAILURE() << "row " << i << " output " << r << ": " << got << " instead of " << want;
      }
    }
    EXPECT_EQ(different, 0u) << rows << " x " << cols << ", " << x.size() / width << " rows";
  }

  std::unique_ptr<Device> device_;
};

TEST_F(AmxKernels, EveryShapeHasTheDefinedBits) {
  uint32_t seed = 1;
  for (const auto& [rows, cols] : {std::pair{1, 1},
                                   {16, 32},
                                   {15, 31},
                                   {17, 33},
                                   {33, 64},
                                   {48, 100},
                                   {31, 2},
                                   {150, 96},
                                   {40, 352},
                                   {260, 70},
                                   {7, 2053}}) {
    const auto size = static_cast<size_t>(rows) * static_cast<size_t>(cols);
    const TestWeights w = Bf16Weights(WideFloats(size, ++seed, 12));
    for (const int32_t m : {1, 2, 5, 6, 10, 11, 15, 16, 17, 33, 70}) {
      if (size * static_cast<size_t>(m) > 300'000) continue;
      const auto x = WideFloats(static_cast<size_t>(m * cols), ++seed, 12);
      const DType bias_type = m % 2 == 0 ? DType::kBF16 : (m % 3 == 0 ? DType::kF16 : DType::kF32);
      const TestWeights bias = RandomWeights(bias_type, static_cast<size_t>(rows), ++seed);
      ExpectDefinition(w, m % 5 == 0 ? nullptr : &bias, rows, cols, x, seed % 3);
    }
    ASSERT_FALSE(HasFailure());
  }
}

// Few and many rows, and both widths of column tiles, far from zero and across all exponents that
// sums and products can have.
TEST_F(AmxKernels, DenormalsCountAsZero) {
  constexpr int32_t kRows = 20, kCols = 70;
  const TestWeights w = Bf16Weights(WideFloats(kRows * kCols, 1, 148));
  for (const size_t m : {1u, 3u, 9u, 20u}) {
    ExpectDefinition(w, nullptr, kRows, kCols, WideFloats(m * kCols, 2, 148), 0);
    auto small = WideFloats(m * kCols, 3, 60);
    for (float& value : small) value *= 0x1p-80f;
    ExpectDefinition(w, nullptr, kRows, kCols, small, 0);
  }
}

TEST_F(AmxKernels, InfinityAndNanStayInTheirRow) {
  constexpr int32_t kRows = 18, kCols = 40;
  auto values = WideFloats(kRows * kCols, 1, 4);
  const TestWeights w = Bf16Weights(values);
  for (const size_t m : {4u, 20u}) {
    auto x = WideFloats(m * kCols, 2, 4);
    x[3] = std::numeric_limits<float>::infinity();
    x[kCols + 39] = FloatOf(0x7f800001u);  // a NaN that is an infinity without its low bits
    x[2 * kCols] = FLT_MAX;
    const auto out = Multiply(w, nullptr, kRows, kCols, x, 0);
    for (size_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(out[r], std::copysign(HUGE_VALF, w.values[r * kCols + 3]));
      EXPECT_TRUE(std::isnan(out[kRows + r]));
    }
    for (size_t i = 2 * kRows; i < out.size(); ++i) EXPECT_TRUE(std::isfinite(out[i])) << i;
    ExpectDefinition(w, nullptr, kRows, kCols, x, 1);
  }
}

// As near to the exact sum as float32 sums are.
TEST_F(AmxKernels, NothingOfAFloat32ActivationIsLost) {
  constexpr int32_t kRows = 32, kCols = 2048;
  const TestWeights w = Bf16Weights(WideFloats(kRows * kCols, 1, 6));
  const auto x = WideFloats(kCols, 2, 6);
  const auto out = Multiply(w, nullptr, kRows, kCols, x, 0);
  double worst = 0;
  for (size_t r = 0; r < kRows; ++r) {
    double want = 0, scale = 0;
    for (size_t k = 0; k < kCols; ++k) {
      const double term = double{x[k]} * double{w.values[r * kCols + k]};
      want += term;
      scale += std::fabs(term);
    }
    worst = std::max(worst, std::fabs(out[r] - want) / scale);
  }
  EXPECT_LT(worst, 2e-7);
}

TEST_F(AmxKernels, OtherWeightTypesHaveTheBitsOfTheOtherSets) {
  auto reference = CreateCpuDevice({.threads = 1, .kernels = "scalar"});
  ASSERT_TRUE(reference.ok());
  constexpr int32_t kRows = 30, kCols = 50;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const int32_t m : {1, 12}) {
      const TestWeights w = RandomWeights(dtype, kRows * kCols, 1);
      const auto x = RandomFloats(static_cast<size_t>(m * kCols), 2);
      std::vector<float> out(static_cast<size_t>(m * kRows)), want(out.size());
      LinearJob job{{w.stored.data(), dtype, kRows, kCols}, {}, x.data(), out.data()};
      device_->ops().Linear({&job, 1}, m);
      job.out = want.data();
      (*reference)->ops().Linear({&job, 1}, m);
      EXPECT_EQ(Bits(out), Bits(want)) << DTypeName(dtype) << " m " << m;
    }
  }
}

// A checkpoint may store the two halves of an MLP in different types.
TEST_F(AmxKernels, GateAndUpOfDifferentTypes) {
  constexpr int32_t kHidden = 40, kIntermediate = 224;
  constexpr size_t kSize = kHidden * kIntermediate;
  const TestWeights gate = Bf16Weights(WideFloats(kSize, 1, 4));
  const TestWeights up = RandomWeights(DType::kF32, kSize, 2);
  const TestWeights down = RandomWeights(DType::kF16, kSize, 3);
  const MlpWeights mlp{{gate.stored.data(), DType::kBF16, kIntermediate, kHidden},
                       {up.stored.data(), DType::kF32, kIntermediate, kHidden},
                       {down.stored.data(), DType::kF16, kHidden, kIntermediate}};
  auto reference = CreateCpuDevice({.threads = 1, .kernels = "scalar"});
  ASSERT_TRUE(reference.ok());
  for (const int32_t m : {1, 12}) {
    const auto x = RandomFloats(static_cast<size_t>(m * kHidden), 4);
    std::vector<float> out(x.size()), want(x.size());
    device_->ops().Mlp(mlp, x.data(), m, out.data());
    (*reference)->ops().Mlp(mlp, x.data(), m, want.data());
    for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], want[i], 1e-3) << i;
  }
}

}  // namespace
}  // namespace expertflow
