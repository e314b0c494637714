// Runs requests through a job and collects what comes back. One thread, the job's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/status.h"
#include "launch/job.h"
#include "transport/messages.h"

namespace expertflow {

struct RequestOutcome {
  std::string text;
  std::vector<int32_t> tokens;  // generated
  RequestDone done;
  bool finished = false;  // `done` has come

  // Time between two tokens on average; 0 with fewer than two.
  int64_t TpotNs() const;
};

struct GenerationSinks {
  // New text of a request, as it comes.
  std::function<void(size_t request, const std::string& text)> text;
  std::function<void(size_t request)> done;
  std::function<void(size_t request, const CapturedPosition&)> captured;
};

struct Generation {
  // kCancelled after a signal, kUnavailable when the job died; what came until then is there.
  Status status;
  std::vector<RequestOutcome> requests;  // as submitted
  int64_t wall_ns = 0;                   // from the first submission to the last answer

  uint64_t generated_tokens() const;
  uint64_t prompt_tokens() const;
  double tokens_per_second() const;
  // The first request that failed; ok when none did.
  Status FirstFailure() const;
};

std::string_view FinishReasonName(FinishReason reason);

// Sets the requests' ids and submits all of them at once. `silence_ns` bounds the wait for the next
// message. After a signal the requests are cancelled, and what is still on its way is taken.
Generation RunRequests(Job& job, std::vector<SubmitRequest> requests, const GenerationSinks& sinks,
                       int64_t silence_ns);

}  // namespace expertflow
