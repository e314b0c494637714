// What predictors learn as messages of a job, and back.
#pragma once

#include "common/status.h"
#include "predictor/core/learnt_statistics.h"
#include "transport/messages.h"

namespace expertflow {

PredictorLearnt ToMessage(const LearntBatch& batch);
// `included` is the coordinator's to fill in.
PredictorVersion ToMessage(LearntVersion version);

// Checked: see CheckLearnt().
Result<LearntBatch> LearntBatchFrom(PredictorLearnt message);
Result<LearntVersion> LearntVersionFrom(PredictorVersion message);

}  // namespace expertflow
