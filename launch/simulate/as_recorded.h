// `expertflow simulate --as-recorded`: a recorded run beside its own simulation.
#pragma once

#include <string>

#include "common/status.h"

namespace expertflow {

struct AsRecorded {
  std::string text;  // for people
  std::string json;
};

// `model`: what the run was recorded from; its layers are measured here, now, with the threads and
// kernels of the recorded run. Errors name the file and what does not fit.
Result<AsRecorded> SimulateAsRecorded(const std::string& trace, const std::string& model,
                                      const std::string& work_folder);

}  // namespace expertflow
