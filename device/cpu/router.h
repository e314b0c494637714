// From router logits to experts and weights, one row at a time (device/ops.h RouterShape). Plain
// code around the kernels that need exact bits; any thread, with a scratch of its own.
#pragma once

#include <cstdint>

#include "device/cpu/kernels/kernel_table.h"
#include "device/cpu/scratch.h"
#include "device/ops.h"

namespace expertflow::cpu {

// logits[experts], ids[top_k], weights[top_k]. `correction` is [experts] or null.
void RouteRow(const KernelTable& kernels, const RouterShape& router, const float* correction,
              const float* logits, Scratch* scratch, int32_t* ids, float* weights);

}  // namespace expertflow::cpu
