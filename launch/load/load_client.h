// An open-loop load on an HTTP server: each request is sent at its time, however many are under way
// and however slow the server is, and its times count from when it was due. So a server that stalls
// shows it in every request that waits (no coordinated omission). One thread, one epoll set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "launch/load/server_stream.h"

namespace expertflow {

struct LoadRequest {
  int64_t at_ns = 0;  // from the start
  std::string bytes;  // head and body
};

struct LoadOutcome {
  int64_t due_ns = 0;    // all from the start
  int64_t sent_ns = 0;   // when it was given to the socket
  int64_t first_ns = 0;  // its first piece of text; 0: none
  int64_t last_ns = 0;   // its last piece of text
  int64_t done_ns = 0;
  int status = 0;  // of HTTP; 0: no answer
  bool ok = false;
  std::string error;  // of one that is not, where something is known: one line
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::vector<float> gaps_ms;  // between pieces
};

struct LoadClientOptions {
  int64_t timeout_ns = 120'000'000'000;  // of a request
  size_t connections_max = 8192;
};

// One outcome for each request, which are ascending in time. Errors are of the load itself: no
// epoll. With TLS each connection makes its own handshake, within its first request's time.
Result<std::vector<LoadOutcome>> RunLoad(const ServerTarget& target,
                                         const std::vector<LoadRequest>& requests,
                                         const LoadClientOptions& options);

}  // namespace expertflow
