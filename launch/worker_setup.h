// What the options mean for a worker. Pure functions of the options.
#pragma once

#include "common/status.h"
#include "launch/options.h"
#include "worker/worker_process.h"

namespace expertflow {

// Contradictory options are named. Job name and member-dependent fields are left to the caller.
Result<WorkerOptions> WorkerOptionsFrom(const Options& options);

}  // namespace expertflow
