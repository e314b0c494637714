// Token sampling. A token is a pure function of (logits, parameters, position): the random number
// comes from a counter (seed, position), never from a stream, so a sequence that is re-run after a
// failure, in another batch or on another worker draws the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "transport/messages.h"

namespace expertflow {

class Sampler {
 public:
  // `position`: of the token that is drawn. Temperature 0 takes the largest logit, the lowest id
  // among equals. Otherwise softmax(logits / temperature), cut to the top_k most likely, then to
  // the smallest set whose probability reaches top_p. A NaN logit is an error, and so is sampling
  // where the largest is infinite.
  Result<int32_t> Sample(std::span<const float> logits, const SamplingParams& params,
                         uint32_t position);

 private:
  std::vector<int32_t> order_;
  std::vector<double> probability_;
};

// Errors name the parameter and its range.
Status CheckSamplingParams(const SamplingParams& params);

}  // namespace expertflow
