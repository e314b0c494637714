// Log probabilities of tokens, as the model itself gives them: before penalties, bias and
// temperature. A pure function; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/messages.h"

namespace expertflow {

// log softmax(logits) of `token`, then of the `count` likeliest tokens, likeliest first, the lowest
// id among equals. Of logits that have no softmax (infinite ones) it may not be finite.
// REQUIRES: 0 <= token < logits.size()
std::vector<TokenLogprob> LogprobsOf(std::span<const float> logits, int32_t token, int32_t count);

}  // namespace expertflow
