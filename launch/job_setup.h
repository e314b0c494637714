// From the options of a command that starts a job to the job's setup.
#pragma once

#include "launch/job.h"
#include "launch/options.h"

namespace expertflow {

// `model` is the absolute path that all roles get. REQUIRES: the command has the job's options
JobSetup MakeJobSetup(const Options& options, const std::string& model);

}  // namespace expertflow
