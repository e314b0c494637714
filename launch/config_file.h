// The config file: a TOML table whose keys are the names of options. Values are strings, numbers or
// booleans, arrays of strings for options that may be repeated.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "launch/options.h"

namespace expertflow {

// In the file's order. Every key that is no option of any command, and every value of another kind,
// is refused with file and line.
Result<std::vector<GivenOption>> ReadConfigFile(const std::string& path);

}  // namespace expertflow
