// One request and its answer over a connection of their own, awaited. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"
#include "launch/load/answer_reader.h"
#include "launch/load/server_stream.h"

namespace expertflow {

struct ExchangeLimits {
  int64_t silence_ns = 10'000'000'000;  // the server may say nothing for as long
  std::optional<Deadline> whole = {};   // of the exchange
  SignalWatcher* signals = nullptr;     // one ends it: kCancelled
};

// Gives what comes to `reader` until the answer is complete, whatever its status is. A connection,
// with its handshake, that is not there within 10 s is given up. Errors name the URL.
Status Exchange(const ServerTarget& target, std::string_view request, const ExchangeLimits& limits,
                AnswerReader* reader);

// The body of a 200; anything else is an error that says what came.
Result<std::string> HttpGet(const ServerTarget& target, const std::string& path,
                            const std::string& key, Deadline deadline);

}  // namespace expertflow
