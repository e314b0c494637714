// What a routing is like, in three numbers that drawn routing can be given (synthetic_routing.h),
// so that a model of which there is no recording is simulated with the habits of one that was
// recorded. Pure.
#pragma once

#include "common/status.h"
#include "sim/routing_trace.h"
#include "sim/synthetic_routing.h"

namespace expertflow {

// Shares of choices, the mean over layers.
struct RoutingStatistics {
  double repeated = 0;          // that the token before has made as well
  double sequence_quarter = 0;  // of the quarter of the experts that a sequence uses most
  double common_quarter = 0;    // of the quarter that all sequences together use most
};
RoutingStatistics MeasureRouting(const RoutingTrace& trace);

struct FittedRouting {
  double skew = 0;
  double common = 0;
  double persistence = 0;
  RoutingStatistics recorded;  // of the part of the recording that it was fitted to
  RoutingStatistics drawn;
};
// The settings whose drawn routing has the statistics of a recorded one: of as many and as long
// sequences, since a short one looks the more uneven. Up to 64 sequences, of up to 256 tokens.
// kInvalidArgument when no two sequences have 32 tokens.
Result<FittedRouting> FitRouting(const RoutingTrace& recorded);

}  // namespace expertflow
