// From the options of a command that starts a job to the job's setup.
#pragma once

#include "common/status.h"
#include "launch/job.h"
#include "launch/model_source.h"
#include "launch/options.h"

namespace expertflow {

// `model` is the absolute path that all roles get. REQUIRES: the command has the job's options
JobSetup MakeJobSetup(const Options& options, const std::string& model);

// Whether this host has room for the job: shared memory for the store, memory for store and
// workers. A dead job leaves its segment behind until it is swept: REQUIRES: SweepJobRemains() was
// called
Status CheckHost(const Options& options, const ModelSource& model, const MemoryPlan& memory);

}  // namespace expertflow
