// What predictors learn and what decode steps measure, as messages of a job, and back.
#pragma once

#include <cstdint>

#include "common/status.h"
#include "predictor/core/dynamic_stride.h"
#include "predictor/core/learnt_statistics.h"
#include "transport/messages.h"

namespace expertflow {

PredictorLearnt ToMessage(const LearntBatch& batch);
// `included` is the coordinator's to fill in.
PredictorVersion ToMessage(LearntVersion version);

// Checked: see CheckLearnt().
Result<LearntBatch> LearntBatchFrom(PredictorLearnt message);
Result<LearntVersion> LearntVersionFrom(PredictorVersion message);

// `expert_bytes`: of the model's largest.
StrideReport ToMessage(const StrideWindow& window, uint64_t expert_bytes, int32_t stride_max);
StrideWindow StrideWindowFrom(const StrideReport& report);

}  // namespace expertflow
