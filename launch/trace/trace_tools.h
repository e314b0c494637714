// The actions of `expertflow trace` on .eft files.
#pragma once

#include <span>
#include <string>

#include "common/status.h"
#include "launch/options.h"

namespace expertflow {

// "inspect", "cut", "merge", "import", "export"
bool IsTraceAction(const std::string& word);
// `files`: the words after the action.
Status RunTraceAction(const Options& options, const std::string& action,
                      std::span<const std::string> files);

// Several of one model, one after the other, as a new file.
Status MergeTraces(std::span<const std::string> inputs, const std::string& output);

}  // namespace expertflow
