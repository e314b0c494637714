// `expertflow bench predictor`: how well the hybrid predictor knows what comes, arm by arm, on a
// recorded trace, and what a prediction costs.
#pragma once

#include "launch/options.h"

namespace expertflow {

int BenchPredictorCommand(const Options& options);

}  // namespace expertflow
