// The folder of a job: its socket, its log, MPI's session files, and a note of who owns it. It lies
// in $XDG_RUNTIME_DIR or /tmp, is for its user only, and can be removed by anybody of that user
// once its owner is dead.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace expertflow {

struct JobFolder {
  std::string job;
  std::string path;
  pid_t owner_pid = 0;
  bool owner_alive = false;
  int64_t modified_ns = 0;  // wall clock
};

std::string ControlSocketPath(const std::string& folder);

// A new folder with a new job name, owned by this process.
Result<JobFolder> CreateJobFolder();
// Creates the folder unless it exists, and notes this process as owner unless another one that is
// alive is noted. True in `owned` when the folder is ours to remove. An existing folder that holds
// anything but a job is refused.
Status ClaimJobFolder(const std::string& path, const std::string& job, bool* owned);
void RemoveJobFolder(const std::string& path);

// Of this user, the newest first. Only folders with an owner's note are jobs'.
std::vector<JobFolder> ListJobFolders();
// Those whose owner is dead; removes them unless `dry_run`.
std::vector<JobFolder> SweepJobFolders(bool dry_run);

}  // namespace expertflow
