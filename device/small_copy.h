// Which copies are small: they take less time than waking a thread for them. The thread that
// computes starts them itself where copies are asynchronous, so a device does not let it make them.
#pragma once

#include <cstddef>

namespace expertflow {

inline constexpr size_t kSmallCopyBytes = 64 * 1024;  // at most

}  // namespace expertflow
