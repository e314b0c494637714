// The fitted tables that a job's workers get: found beside the model or named by an option.
#pragma once

#include <vector>

#include "common/status.h"
#include "launch/model_source.h"
#include "launch/options.h"
#include "transport/messages.h"

namespace expertflow {

// What is called so in a model folder is used by itself.
inline constexpr char kForecasterFileName[] = "forecaster.efn";
inline constexpr char kPredictorFileName[] = "predictor.efp";

// Reads and checks them as far as that can be done before the model is loaded: whether a file was
// fitted to this very model is seen by the workers. Empty for a job that computes in place. An
// error names the file. REQUIRES: the command has the job's options
Result<std::vector<PublishTables>> LoadPolicyTables(const Options& options,
                                                    const ModelSource& model);

}  // namespace expertflow
