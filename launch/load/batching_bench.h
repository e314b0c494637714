// `expertflow bench batching`: what it is worth that sequences join and leave a batch at any step.
// Two engines get the same requests at the same times; one admits a new batch only when all of the
// last one have ended.
//
// Time is that of the steps' work: a step takes as long as its thread computes, and between steps
// only arrivals pass time. So other processes of the machine do not disturb it. Server and sockets
// are not part of it.
#pragma once

#include <vector>

#include "common/status.h"
#include "launch/bench/bench_report.h"
#include "launch/bench/bench_setup.h"
#include "launch/load/arrivals.h"
#include "launch/load/load_report.h"

namespace expertflow {

// Their mean rate is set to shares of what the engine can do; lengths are kept. Goodput is what
// ends within `level`, by second. One thread.
Result<BenchReport> BenchBatching(const BenchSetup& setup, const std::vector<Arrival>& arrivals,
                                  const ServiceLevel& level);

}  // namespace expertflow
