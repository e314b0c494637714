// What a config.json's quantization_config says about how a checkpoint keeps its weights. Which
// tensors are quantised shows in the checkpoint itself (model_tensors.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "common/dtype.h"
#include "common/status.h"
#include "model/checkpoint/json_config.h"

namespace expertflow {

struct Quantisation {
  enum class Method : uint8_t {
    kNone,
    kFp8,    // e4m3 with a float scale for each block of a matrix, or for the whole
    kMxfp4,  // e2m1 with a power of two for each 32 elements
    kGptq,   // integers with scale and zero point for each group of inputs, packed over inputs
    kAwq,    // likewise, packed over outputs
    kGguf,   // a GGUF file, whatever its types
  };

  Method method = Method::kNone;
  // kFp8: of the blocks; 0: one scale for a matrix.
  int32_t block_rows = 0;
  int32_t block_cols = 0;
  // kGptq, kAwq.
  int32_t bits = 4;
  int32_t group_size = -1;  // inputs that share a scale; -1: all
  int32_t zero_offset = 0;  // added to a stored zero point
  bool act_order = false;   // the groups' inputs do not lie together: g_idx must be there
  bool symmetric = false;   // zero points are said to be in the middle of the integers
};

// "none", "fp8", "mxfp4", "gptq", "awq", "gguf"
std::string_view QuantisationName(Quantisation::Method method);

// Of the key quantization_config; absent: kNone. Methods, bits and switches that the decoders do
// not know are refused by name; unknown keys of the object stay unread.
Result<Quantisation> ReadQuantisation(const JsonConfig& config);

// What a store keeps matrices as, when nothing is known but the config: those that become floats,
// and those of experts.
DType StoredFloatType(const Quantisation& quantisation, DType unquantised);
DType StoredExpertType(const Quantisation& quantisation, DType unquantised);

}  // namespace expertflow
