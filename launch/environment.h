// Variables of the environment that look like ours but have no effect: a misspelt one would
// otherwise be ignored in silence. Thread-safe while nobody changes the environment.
#pragma once

#include <string>
#include <vector>

namespace expertflow {

// The job's secret; not an option, because other users can read a command line.
inline constexpr const char* kJoinSecretVariable = "EXPERTFLOW_JOIN_SECRET";

// The variables of this process that begin with EXPERTFLOW_ and are not empty, sorted by name.
std::vector<std::string> OwnVariables();

// A line for each of `names` that nothing reads: it names the variable, and what may be meant.
std::vector<std::string> IgnoredVariables(const std::vector<std::string>& names);

}  // namespace expertflow
