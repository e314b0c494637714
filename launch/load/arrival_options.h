// The requests that `bench serve` and `bench batching` are asked for.
#pragma once

#include <vector>

#include "common/status.h"
#include "launch/load/arrivals.h"
#include "launch/load/load_report.h"
#include "launch/options.h"

namespace expertflow {

// As recorded in --arrivals, else drawn. Errors name the option.
Result<std::vector<Arrival>> ArrivalsFrom(const Options& options);
ServiceLevel ServiceLevelFrom(const Options& options);

}  // namespace expertflow
