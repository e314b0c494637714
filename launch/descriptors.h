// How many files and connections this process may have open.
#pragma once

#include <cstdint>

namespace expertflow {

// As many as wanted, as far as the system allows; the number that is then allowed.
uint64_t RaiseDescriptorLimit(uint64_t wanted);

}  // namespace expertflow
