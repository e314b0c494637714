// One small answer of an HTTP server, awaited.
#pragma once

#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "launch/load/server_url.h"

namespace expertflow {

// The body of a 200; anything else is an error that says what came.
Result<std::string> HttpGet(const ServerUrl& url, const ServerAddress& address,
                            const std::string& path, const std::string& key, Deadline deadline);

}  // namespace expertflow
