// The processes of a job on this host, found by their command lines.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/clock.h"

namespace expertflow {

// Role processes of this user that were started with "--job <job>".
std::vector<pid_t> FindJobProcesses(const std::string& job);
// Waits for them to end by themselves, then kills those that are left.
void EndJobProcesses(const std::string& job, Deadline deadline);

}  // namespace expertflow
