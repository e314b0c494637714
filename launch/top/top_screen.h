// What `expertflow top` shows of two looks at a job's metrics. Pure.
#pragma once

#include <string>

#include "launch/top/metric_samples.h"

namespace expertflow {

// `seconds` between the two looks. Rates and shares are of that time.
std::string TopScreen(const MetricSamples& before, const MetricSamples& now, double seconds);

}  // namespace expertflow
