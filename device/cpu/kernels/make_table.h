// Fills a kernel table from a back end (see kernel_table.h).
#pragma once

#include "device/cpu/kernels/attention.h"
#include "device/cpu/kernels/elementwise.h"
#include "device/cpu/kernels/kernel_table.h"
#include "device/cpu/kernels/linear.h"

namespace expertflow::cpu {

template <typename B>
inline constexpr KernelTable kKernelTable = {
    .name = B::kName,
    .gemv = Gemv<B>,
    .gemm_tile_rows = B::kTileRows,
    .gemm_panel_rows = GemmPanelRows<B>,
    .gemm_scratch_floats = GemmScratchFloats<B>,
    .gemm = Gemm<B>,
    .pack_x = PackX<B>,
    .convert = Convert<B>,
    .rms_norm = RmsNorm<B>,
    .silu_mul = SiluMul<B>,
    .rope = Rope<B>,
    .softmax = Softmax<B>,
    .attention = Attention<B>,
    .combine = Combine<B>,
    .add = AddTo<B>,
};

}  // namespace expertflow::cpu
