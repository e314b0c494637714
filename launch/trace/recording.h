// `--record FILE`: each worker writes a part of its own, and whoever started the job makes one file
// of them when it has ended. After a crash the parts stay: they are traces, too.
#pragma once

#include <string>

#include "common/status.h"
#include "transport/transport.h"

namespace expertflow {

// "run.eft" -> "run.<job>.<worker>.eft"
std::string RecordingPart(const std::string& file, const std::string& job, ProcessId worker);
// Merges the parts of `job` on this host into `file` and removes them. An error, kNotFound when
// there are none among them, leaves them where they are.
Status GatherRecording(const std::string& file, const std::string& job);

}  // namespace expertflow
