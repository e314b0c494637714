// When requests come, and how long they are: drawn, or as they were recorded. Pure but for the
// reading of a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace expertflow {

struct Arrival {
  int64_t at_ns = 0;  // from the start
  int32_t prompt_tokens = 1;
  int32_t max_tokens = 1;
};

// Ascending in time: `count` of them, `per_second` on average, independent of each other.
std::vector<Arrival> PoissonArrivals(double per_second, int64_t count, uint64_t seed,
                                     const Arrival& each);

struct ArrivalScale {
  double time = 1;     // 0.5: twice as fast
  double lengths = 1;  // of prompt and answer
  int64_t count_max = 0;
  int32_t prompt_tokens_max = 1;
  int32_t max_tokens_max = 1;
};

// A recording: lines of "TIMESTAMP,ContextTokens,GeneratedTokens" (Azure), or of JSON with
// timestamp (ms), input_length and output_length (Mooncake). Errors name the line.
Result<std::vector<Arrival>> ParseArrivals(std::string_view text, const ArrivalScale& scale);

}  // namespace expertflow
