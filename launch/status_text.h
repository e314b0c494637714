// A job's status for a terminal.
#pragma once

#include <string>

namespace expertflow {

// `json` as the coordinator made it. Unknown parts are shown as they are.
std::string DescribeStatus(const std::string& json);

}  // namespace expertflow
