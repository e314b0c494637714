#include "predictor/core/byte_matrix.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/wide.h"

namespace expertflow {
namespace {

constexpr size_t kColumns = 512;  // of the output at a time, on the stack

EXPERTFLOW_WIDE void AddFour(const float* scales, const int8_t* rows, size_t stride, size_t n,
                             float* to) {
  const int8_t* r0 = rows;
  const int8_t* r1 = rows + stride;
  const int8_t* r2 = rows + 2 * stride;
  const int8_t* r3 = rows + 3 * stride;
  const float s0 = scales[0];
  const float s1 = scales[1];
  const float s2 = scales[2];
  const float s3 = scales[3];
  for (size_t i = 0; i < n; ++i) {
    to[i] += (s0 * static_cast<float>(r0[i]) + s1 * static_cast<float>(r1[i])) +
             (s2 * static_cast<float>(r2[i]) + s3 * static_cast<float>(r3[i]));
  }
}

EXPERTFLOW_WIDE void AddOne(float scale, const int8_t* row, size_t n, float* to) {
  for (size_t i = 0; i < n; ++i) to[i] += scale * static_cast<float>(row[i]);
}

}  // namespace

void AddRows(const ByteMatrix& matrix, size_t first, std::span<const float> in, size_t outputs,
             float* to) {
  const auto stride = static_cast<size_t>(matrix.outputs);
  CHECK(outputs <= stride && first + in.size() <= static_cast<size_t>(matrix.inputs));
  const int8_t* rows = matrix.weight.data() + first * stride;
  for (size_t begin = 0; begin < outputs; begin += kColumns) {
    const size_t n = std::min(kColumns, outputs - begin);
    float sum[kColumns] = {};
    size_t i = 0;
    for (; i + 4 <= in.size(); i += 4) AddFour(&in[i], rows + i * stride + begin, stride, n, sum);
    for (; i < in.size(); ++i) AddOne(in[i], rows + i * stride + begin, n, sum);
    for (size_t o = 0; o < n; ++o) to[begin + o] += matrix.scale[begin + o] * sum[o];
  }
}

void ApplyMatrix(const ByteMatrix& matrix, std::span<const float> in, size_t outputs, float* out) {
  CHECK(in.size() == static_cast<size_t>(matrix.inputs));
  std::copy_n(matrix.bias.data(), outputs, out);
  AddRows(matrix, 0, in, outputs, out);
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
      matrix.weight[i * outputs + o] =
          static_cast<int8_t>(std::lround(weight[i * outputs + o] / matrix.scale[o]));
    }
  }
  return matrix;
}

}  // namespace expertflow
