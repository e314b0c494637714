// Numbers within bounds as texts of a grammar: decimals without an exponent, digit by digit.
#pragma once

#include <optional>

#include "common/status.h"
#include "model/grammar/grammar.h"

namespace expertflow {

struct NumberBounds {
  std::optional<double> min;
  std::optional<double> max;
  bool min_exclusive = false;
  bool max_exclusive = false;
  bool integer = false;  // no fraction
};

// A number that is within `bounds`, then `next`: up to 15 digits before the point and 16 after it.
// kInvalidArgument when there is none.
Result<Grammar::NodeId> NumberWithin(const NumberBounds& bounds, Grammar* grammar,
                                     Grammar::NodeId next);

}  // namespace expertflow
