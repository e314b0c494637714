// `expertflow bench layouts`: how much of a device's memory holds something when experts and KV
// cache are laid out contiguously or in blocks (sim/memory_layouts.h), for requests as they come.
#pragma once

#include <vector>

#include "common/status.h"
#include "launch/bench/bench_report.h"
#include "launch/load/arrivals.h"

namespace expertflow {

// Simulated, with drawn routing: equal on every machine. REQUIRES: arrivals is not empty
Result<BenchReport> BenchLayouts(const std::vector<Arrival>& arrivals);

}  // namespace expertflow
