// Compute times of one model on one machine, fitted to what was measured there: for machines that
// are at hand, where a roofline of data-sheet rates would say little. Costs may also be chosen, for
// a device that stands for no machine. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "common/status.h"
#include "sim/device_simulator.h"

namespace expertflow {

// Nanoseconds.
struct MeasuredCosts {
  double step_begin = 0;           // before the first layer
  double layer = 0;                // before the experts of a layer: attention, router, policies
  double layer_row = 0;            // for each row
  double layer_context_token = 0;  // for each token of context
  double experts = 0;              // a run of some experts at once
  double expert = 0;               // for each of them
  double expert_row = 0;           // for each (row, choice) pair
  double step_end = 0;             // head and sampling
  double step_end_row = 0;         // for each row whose next token is drawn
  // See DeviceSimOptions.
  double chunk_prepare = 0;
  double chunk_start = 0;
  double chunk_copy = 0;
  double arrival = 0;
  double wake = 0;
  double ranked_slot = 0;
};

class MeasuredTimes final : public ComputeTimes {
 public:
  explicit MeasuredTimes(const MeasuredCosts& costs) : costs_(costs) {}
  int64_t BeforeExpertsNs(int32_t layer, int32_t rows, int64_t context) const override;
  int64_t ExpertsNs(int32_t layer, int32_t experts, int32_t rows) const override;
  int64_t StepEndNs(int32_t rows) const override;

 private:
  const MeasuredCosts costs_;
};

// One (step, layer) over a link that takes no time, so that nothing waits for it.
struct MeasuredLayer {
  int32_t layer = 0;
  int32_t rows = 0;
  int64_t context = 0;  // tokens, all rows
  int32_t experts = 0;
  int32_t pairs = 0;      // (row, choice)
  int32_t chunks = 0;     // copied, one an expert
  int32_t ranked = 0;     // slots that were ranked for a victim
  int32_t runs = 1;       // of experts: 2 where some were there and others came
  int64_t before_ns = 0;  // from the end of the layer before, or of the step's begin
  int64_t inside_ns = 0;  // what is left of it
};

struct MeasuredStepEnd {
  int32_t sampled = 0;
  int64_t ns = 0;
};

// What a copy takes at its start, and before, is measured by itself (ns): the layers do not tell it
// from what it takes when it arrives.
struct MeasuredCopy {
  double prepare = 0;
  double start = 0;
  double copy = 0;  // of a thread that makes the copies, unless who starts them does
};

// The costs that explain the typical layer: deviations count by their size, relative to the time,
// not by its square, so that a layer which was interrupted hardly matters. kInvalidArgument when
// the layers do not tell the costs apart.
Result<MeasuredCosts> FitCosts(std::span<const MeasuredLayer> layers,
                               std::span<const MeasuredStepEnd> ends, const MeasuredCopy& copy);

}  // namespace expertflow
