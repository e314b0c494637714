// How the CPU device writes keys and values into a KV cache (StoreKv of device/ops.h). Pure
// functions, the same on every instruction set.
#pragma once

#include <cstddef>
#include <span>

#include "common/dtype.h"

namespace expertflow::cpu {

// A key or value of one head. REQUIRES: `to` has KvHeadBytes(dtype, values.size()), aligned to 4
void EncodeKvHead(std::span<const float> values, DType dtype, std::byte* to);

}  // namespace expertflow::cpu
