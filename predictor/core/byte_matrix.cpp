#include "predictor/core/byte_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "common/check.h"
#include "common/wide.h"

namespace expertflow {
namespace {

constexpr size_t kTogether = 4;  // sums at a time: what stays in registers

// One row with four outputs, whose weights are `stride` apart.
EXPERTFLOW_WIDE void DotOutputs(const int16_t* in, const int8_t* weight, size_t stride, size_t n,
                                int32_t* sums) {
  const int8_t* w0 = weight;
  const int8_t* w1 = weight + stride;
  const int8_t* w2 = weight + 2 * stride;
  const int8_t* w3 = weight + 3 * stride;
  int32_t s0 = 0;
  int32_t s1 = 0;
  int32_t s2 = 0;
  int32_t s3 = 0;
  for (size_t i = 0; i < n; ++i) {
    const int16_t x = in[i];
    s0 += x * static_cast<int16_t>(w0[i]);
    s1 += x * static_cast<int16_t>(w1[i]);
    s2 += x * static_cast<int16_t>(w2[i]);
    s3 += x * static_cast<int16_t>(w3[i]);
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
  sums[3] = s3;
}

// Four rows with one output, whose weights are read once.
EXPERTFLOW_WIDE void DotRows(const StepRow* rows, const int8_t* weight, size_t n, int32_t* sums) {
  const int16_t* x0 = rows[0].step;
  const int16_t* x1 = rows[1].step;
  const int16_t* x2 = rows[2].step;
  const int16_t* x3 = rows[3].step;
  int32_t s0 = 0;
  int32_t s1 = 0;
  int32_t s2 = 0;
  int32_t s3 = 0;
  for (size_t i = 0; i < n; ++i) {
    const int16_t w = weight[i];
    s0 += x0[i] * w;
    s1 += x1[i] * w;
    s2 += x2[i] * w;
    s3 += x3[i] * w;
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
  sums[3] = s3;
}

EXPERTFLOW_WIDE int32_t Dot(const int16_t* in, const int8_t* weight, size_t n) {
  int32_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += in[i] * static_cast<int16_t>(weight[i]);
  return sum;
}

EXPERTFLOW_WIDE void RoundToSteps(const float* in, float steps_per_one, size_t n, int16_t* step) {
  for (size_t i = 0; i < n; ++i) {
    const float scaled = in[i] * steps_per_one;
    step[i] = static_cast<int16_t>(static_cast<int32_t>(scaled + (scaled < 0 ? -0.5f : 0.5f)));
  }
}

// The largest size of them; no finite number unless all are. Sizes are in the order of their bits,
// and what is no finite number comes after all others.
EXPERTFLOW_WIDE float Largest(const float* in, size_t n) {
  int32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t size = std::bit_cast<int32_t>(in[i]) & INT32_MAX;
    largest = size > largest ? size : largest;
  }
  return std::bit_cast<float>(largest);
}

}  // namespace

StepRow ToSteps(std::span<const float> in, int16_t* step) {
  // Of sums of so many products with bytes, none leaves 32 bits.
  const int32_t most = std::min<int32_t>(
      INT16_MAX, static_cast<int32_t>(INT32_MAX / (128 * std::max<size_t>(in.size(), 1))));
  const float largest = Largest(in.data(), in.size());
  const float steps_per_one = static_cast<float>(most) / largest;
  if (!std::isfinite(largest) || !(largest > 0) || !std::isfinite(steps_per_one)) {
    std::fill_n(step, in.size(), int16_t{0});
    return {step, 0};
  }
  RoundToSteps(in.data(), steps_per_one, in.size(), step);
  return {step, largest / static_cast<float>(most)};
}

void AddProducts(const ByteMatrix& matrix, size_t first, size_t inputs, size_t outputs,
                 std::span<const StepRow> in, std::span<float* const> to) {
  const auto stride = static_cast<size_t>(matrix.inputs);
  CHECK(in.size() == to.size() && first + inputs <= stride);
  CHECK(outputs <= static_cast<size_t>(matrix.outputs));
  const auto weights = [&](size_t o) { return matrix.weight.data() + o * stride + first; };
  const auto add = [&](size_t r, size_t o, int32_t sum) {
    to[r][o] += in[r].size * matrix.scale[o] * static_cast<float>(sum);
  };
  int32_t sums[kTogether];
  size_t r = 0;
  for (; r + kTogether <= in.size(); r += kTogether) {
    for (size_t o = 0; o < outputs; ++o) {
      DotRows(&in[r], weights(o), inputs, sums);
      for (size_t i = 0; i < kTogether; ++i) add(r + i, o, sums[i]);
    }
  }
  for (; r < in.size(); ++r) {
    size_t o = 0;
    for (; o + kTogether <= outputs; o += kTogether) {
      DotOutputs(in[r].step, weights(o), stride, inputs, sums);
      for (size_t i = 0; i < kTogether; ++i) add(r, o + i, sums[i]);
    }
    for (; o < outputs; ++o) add(r, o, Dot(in[r].step, weights(o), inputs));
  }
}

void ApplyMatrix(const ByteMatrix& matrix, size_t outputs, std::span<const StepRow> in,
                 std::span<float* const> to) {
  for (float* row : to) std::copy_n(matrix.bias.data(), outputs, row);
  AddProducts(matrix, 0, static_cast<size_t>(matrix.inputs), outputs, in, to);
}

ByteMatrix MakeByteMatrix(size_t inputs, size_t outputs, std::span<const float> weight,
                          std::vector<float> bias) {
  CHECK(weight.size() == inputs * outputs && bias.size() == outputs);
  ByteMatrix matrix;
  matrix.inputs = static_cast<int32_t>(inputs);
  matrix.outputs = static_cast<int32_t>(outputs);
  matrix.bias = std::move(bias);
  matrix.scale.resize(outputs);
  matrix.weight.resize(inputs * outputs);
  for (size_t o = 0; o < outputs; ++o) {
    float largest = 0;
    for (size_t i = 0; i < inputs; ++i) {
      largest = std::max(largest, std::abs(weight[i * outputs + o]));
    }
    matrix.scale[o] = largest / 127;
    for (size_t i = 0; i < inputs && largest > 0; ++i) {
      matrix.weight[o * inputs + i] =
          static_cast<int8_t>(std::lround(weight[i * outputs + o] / matrix.scale[o]));
    }
  }
  return matrix;
}

}  // namespace expertflow
