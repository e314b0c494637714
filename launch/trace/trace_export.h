// A trace as text for other programs.
#pragma once

#include <string>

#include "common/status.h"

namespace expertflow {

// By the ending of `output`: .csv has a line for each (row, layer), .jsonl is what trace_import.h
// reads (both in docs/file-formats.md). Optional columns and timings are left out.
Status ExportTrace(const std::string& path, const std::string& output);

}  // namespace expertflow
