// What a load has shown: percentiles of the times, rates, errors, and how much of it was good.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launch/load/load_client.h"

namespace expertflow {

struct Percentiles {
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
  double mean = 0;
  size_t count = 0;
};
// Of the values themselves, none between two: the smallest that so many percent do not exceed.
Percentiles PercentilesOf(std::vector<float> values);

struct ServiceLevel {
  double ttft_ms = 0;  // 0: any
  double tpot_ms = 0;
};

struct LoadReport {
  size_t requests = 0;
  size_t done = 0;
  double seconds = 0;                                  // from the first due time to the last end
  std::vector<std::pair<std::string, size_t>> errors;  // by kind, most frequent first
  std::string first_error;                             // what the first that failed was told
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  Percentiles ttft_ms;
  Percentiles tpot_ms;  // of a request: between its tokens on average
  Percentiles gap_ms;   // between two pieces of text
  Percentiles total_ms;
  Percentiles lateness_ms;  // of this client: sent after it was due
  size_t good = 0;          // done, and within the service level
  size_t concurrent_max = 0;

  double PerSecond(double count) const { return seconds > 0 ? count / seconds : 0; }
};

LoadReport ReportOf(const std::vector<LoadOutcome>& outcomes, const ServiceLevel& level);

}  // namespace expertflow
