// What a simulation needs to know of a model, worked out from its architecture alone.
#pragma once

#include "common/status.h"
#include "launch/model_source.h"
#include "sim/roofline.h"

namespace expertflow {

struct Precision {
  double dense_bits = 16;   // of a weight
  double expert_bits = 16;  // 4 and 8: with a 16-bit scale for each group of 128
  double kv_bits = 16;
};

// kInvalidArgument for a model without experts.
Result<SimModel> MakeSimModel(const ModelSource& source, const std::string& name,
                              const Precision& precision);

}  // namespace expertflow
