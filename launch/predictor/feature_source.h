// The features that predictors learn from and are judged by, of recorded traces: as recorded, or,
// where a trace has the routing only, by running the model once more over its token ids. A forward
// pass is a function of the tokens, so both give the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "predictor/feature_trace.h"

namespace expertflow {

struct FeatureSourceOptions {
  std::vector<std::string> traces;
  std::string sequences;         // as of ParseSequenceList(); of all traces, numbered through
  size_t tokens_max = SIZE_MAX;  // whole sequences, spread evenly over those chosen
  std::string model;             // folder or store file, for traces without features
  std::string work_folder;       // where it is packed if need be
  int32_t threads = 1;
};

// Errors name the trace.
Result<std::unique_ptr<FeatureTrace>> LoadFeatures(const FeatureSourceOptions& options);

}  // namespace expertflow
