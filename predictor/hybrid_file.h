// The hybrid predictor as a file, `.efp` (docs/file-formats.md): the model, which language model it
// was fitted to and which texts. Any bytes are a safe input.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "predictor/core/hybrid_model.h"

namespace expertflow {

struct HybridFile {
  HybridModel model;
  std::array<uint8_t, 16> identity = {};  // ModelIdentity() of the trace
  std::vector<uint64_t> trained_on;       // FeatureTrace::HashOf() of the sequences, ascending
  uint64_t trained_tokens = 0;
};

// REQUIRES: CheckHybridModel(file.model).ok()
std::string EncodeHybrid(const HybridFile& file);
// Errors begin with `name`.
Result<HybridFile> DecodeHybrid(std::string_view bytes, const std::string& name);
Result<HybridFile> ReadHybrid(const std::string& path);

}  // namespace expertflow
