// What a run typically takes, from repetitions that take the same steps: the sum over all layers of
// the median of each, so that one which was interrupted now and then does not count.
#pragma once

#include <cstdint>
#include <vector>

#include "launch/simulate/recorded_run.h"

namespace expertflow {

class TypicalSteps {
 public:
  // REQUIRES: as many steps as the others
  void Add(const RecordedRun& run);

  double total_ns() const {
    return Sum(&RecordedRun::LayerTimes::before_ns) + inside_ns() + EndNs();
  }
  double stall_ns() const { return Sum(&RecordedRun::LayerTimes::stall_ns); }

 private:
  double inside_ns() const { return Sum(&RecordedRun::LayerTimes::inside_ns); }
  double Sum(int64_t RecordedRun::LayerTimes::*time) const;
  double EndNs() const;

  std::vector<std::vector<RecordedRun::LayerTimes>> layers_;  // [steps * layers][repetitions]
  std::vector<std::vector<int64_t>> ends_;                    // [steps][repetitions]
};

}  // namespace expertflow
