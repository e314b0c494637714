// Timelines of workers (worker/timeline.h) as Chrome trace events, which Perfetto and
// chrome://tracing show: a process per worker, a thread per stream.
#pragma once

#include <string>
#include <vector>

#include "worker/timeline.h"

namespace expertflow {

// The JSON text. Times count from the earliest span.
std::string PerfettoJson(const std::vector<Timeline>& timelines);

}  // namespace expertflow
