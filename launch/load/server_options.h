// The server that `chat`, `top` and `bench serve` are to talk to.
#pragma once

#include "common/status.h"
#include "launch/load/server_stream.h"
#include "launch/options.h"

namespace expertflow {

// From --url, --ca-file and --insecure, of which the last is said on standard error. Errors name
// the option.
Result<ServerTarget> ServerTargetFrom(const Options& options);

}  // namespace expertflow
