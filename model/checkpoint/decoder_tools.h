// What the decoders of quantised tensors share. Internal to model_checkpoint.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "model/checkpoint/tensor_decoder.h"

namespace expertflow {

// One of these types, and this shape; the error names the tensor.
Status CheckPart(const TensorInfo& part, std::initializer_list<ElementType> types,
                 const std::vector<int64_t>& shape);

// A whole tensor of F32, F16, BF16 or F8_E8M0.
Status ReadNumbers(TensorReader& reader, const TensorInfo& tensor, std::vector<float>* out);

// The error names the tensor.
Status CheckFinite(const TensorInfo& tensor, std::span<const float> values);
// Of scales with codes of up to `largest`.
Status CheckProducts(const TensorInfo& tensor, std::span<const float> scales, float largest);

// 2^(bits - 127) as OCP's E8M0 has it; 255: NaN.
inline float PowerOfTwo(uint8_t bits) {
  if (bits == 255) return NAN;
  return bits == 0 ? 0x1p-127f : std::bit_cast<float>(uint32_t{bits} << 23);
}

}  // namespace expertflow
