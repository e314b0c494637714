// From trace files to what the tools work on. A file is an .eft trace, or one that trace_import.h
// can read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/trace/trace_format.h"
#include "launch/trace/trace_import.h"
#include "sim/routing_trace.h"

namespace expertflow {

// The decode rows of a trace, by sequence, with what the policies need.
struct LoadedTrace {
  TraceShape shape;
  RoutingTrace routing;
  std::vector<uint64_t> sequence_hashes;  // of the routing: the same sequence in another file
  uint64_t prompt_rows = 0;               // left out
  bool truncated = false;
};

// `expert_bytes`: as ImportTrace(); overrides what the trace says unless 0.
Result<LoadedTrace> LoadTrace(const std::string& path, uint64_t expert_bytes);

// All of a trace file into a sink. Sequences come before the rows that name them.
Status CopyTrace(const std::string& path, TraceSink* sink);

// "0:100,150:", "2:377:8": begin:end:step as Python slices without negative numbers, one after the
// other; empty is all. Ascending, each once. `origin` names the option in errors.
Result<std::vector<int32_t>> ParseSequenceList(const std::string& text, size_t sequences,
                                               const std::string& origin);

}  // namespace expertflow
