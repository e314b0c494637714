// Fills a kernel table from a back end (see kernel_table.h).
#pragma once

#include "device/cpu/kernels/attention.h"
#include "device/cpu/kernels/elementwise.h"
#include "device/cpu/kernels/integer.h"
#include "device/cpu/kernels/kernel_table.h"
#include "device/cpu/kernels/linear.h"
#include "device/cpu/kernels/transposed.h"

namespace expertflow::cpu {

// Of back end B. Products of integers come from another one.
template <typename B, const PackedKernels* kInteger>
inline constexpr KernelTable kKernelTable = {
    .name = B::kName,
    .arithmetic = "16 lanes",
    .raise_row = RaiseRow<B>,
    .gemv = Gemv<B>,
    .gemm = {.tile_rows = B::kTileRows,
             .tile_floats = TileFloats<B>,
             .pack_x = PackX<B>,
             .panel_rows = GemmPanelRows<B>,
             .scratch_floats = GemmScratchFloats<B>,
             .multiply = Gemm<B>},
    .bf16 = nullptr,
    .integer = kInteger,
    .convert = Convert<B>,
    .rms_norm = RmsNorm<B>,
    .silu_mul = SiluMul<B>,
    .clamped_swiglu = ClampedSwiglu<B>,
    .sigmoid = SigmoidOf<B>,
    .clamp = Clamp<B>,
    .scale = Scale<B>,
    .transposed = Transposed<B>,
    .rope = Rope<B>,
    .rope_neighbours = RopeNeighbours<B>,
    .softmax = Softmax<B>,
    .attention = Attention<B>,
    .combine = Combine<B>,
    .add = AddTo<B>,
};

}  // namespace expertflow::cpu
