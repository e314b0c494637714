// `expertflow train ... -o FILE.efp`: fits the hybrid predictor.
#pragma once

#include "common/status.h"
#include "launch/options.h"

namespace expertflow {

Status TrainPredictor(const Options& options);

}  // namespace expertflow
