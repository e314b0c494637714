// The CPU kernels behind plain function pointers, one table per instruction set.
//
// Only this header is shared between code for the x86-64 baseline and the sources compiled for
// AVX2, AVX-512 or AMX. Those sources define nothing but their table: everything else in them has
// internal linkage, so that the linker can never pick an AVX copy of a function for baseline code.
//
// The tables scalar, avx2 and avx512 give the same bits (the rule of device/ops.h): the algorithms
// are templates over a thin back end (elementwise.h, linear.h, attention.h) whose operations are
// exact in IEEE 754. amx is the table avx512 with its own sums for bf16 weights (amx.cpp).
// Products of integers use what the machine has of VNNI and AMX-INT8: their bits are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"

namespace expertflow::cpu {

inline constexpr int kLanes = 16;  // of every dot product

// out[i][r] = x[i] . weight[r] + bias[r] for the m activation rows that the pointer lists name.
struct MatmulArgs {
  const void* weight = nullptr;  // [stored_rows, cols], of which [first_row, first_row + rows)
  DType weight_dtype = DType::kBF16;
  int32_t stored_rows = 0;
  int32_t first_row = 0;       // 0 of floats: `weight` begins there
  const void* bias = nullptr;  // [rows] or null
  DType bias_dtype = DType::kBF16;
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t m = 0;
  const float* const* x = nullptr;  // [m] rows of [cols]
  const float* packed_x = nullptr;  // the same rows as pack_x() of PackedKernels laid them out
  float* const* out = nullptr;      // [m] rows of [rows]
};

// out[i] = x[i] * weight, summed over the rows of `weight`.
struct TransposedArgs {
  const void* weight = nullptr;  // as in MatmulArgs
  DType weight_dtype = DType::kBF16;
  int32_t stored_rows = 0;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t m = 0;
  const float* x = nullptr;  // m rows of [rows], x_stride floats apart
  int64_t x_stride = 0;
  float* out = nullptr;  // m rows of [cols], out_stride floats apart
  int64_t out_stride = 0;
};

// The query heads of one row that share a key/value head.
struct AttentionArgs {
  const float* q = nullptr;      // [queries, head_dim]
  float* out = nullptr;          // [queries, value_dim]
  const void* keys = nullptr;    // of this key/value head, in block 0 of the layer
  const void* values = nullptr;  // likewise
  DType kv_dtype = DType::kF32;  // of both, as in device/ops.h
  const int32_t* block_table = nullptr;
  int64_t block_stride = 0;  // bytes
  int64_t token_stride = 0;  // bytes
  int32_t block_tokens = 0;
  int32_t first = 0;  // attends to [first, positions)
  int32_t positions = 0;
  int32_t queries = 0;
  int32_t head_dim = 0;
  int32_t value_dim = 0;
  float scale = 0;
  const float* sinks = nullptr;  // [queries] or null: one more score without a value
};

struct CombineArgs {
  const float* expert_out = nullptr;   // [k, hidden]
  const float* weights = nullptr;      // [k]
  const float* shared_out = nullptr;   // [hidden] or null
  const float* shared_gate = nullptr;  // one logit or null
  float* residual = nullptr;           // [hidden]
  int32_t k = 0;
  int32_t hidden = 0;
};

// A product of panels of weight rows with activations that were packed before.
struct PackedKernels {
  int32_t tile_rows;  // activation rows that are packed together
  int32_t (*tile_floats)(int32_t cols);
  // Writes rows [tile * tile_rows, ...) of x to packed + tile * tile_floats(cols).
  void (*pack_x)(const float* const* x, int32_t m, int32_t cols, int32_t tile, float* packed);

  int32_t (*panel_rows)(int32_t cols);
  size_t (*scratch_floats)(int32_t cols);
  // REQUIRES: args.packed_x != nullptr, row_end - row_begin <= panel_rows(cols); `scratch` is
  // aligned to 64 bytes
  void (*multiply)(const MatmulArgs& args, int32_t row_begin, int32_t row_end, float* scratch);
};

// Weights that can be multiplied with integers: they are integers themselves, but for a scale and
// perhaps a minimum.
constexpr bool HasIntegerProducts(DType dtype) {
  return IsQuantised(dtype) && dtype != DType::kFp8;
}

struct KernelTable {
  const char* name;
  const char* arithmetic;  // DeviceProperties::arithmetic

  // Row `row` of the matrix as float32. Looks at the weights only.
  void (*raise_row)(const MatmulArgs& args, int32_t row, float* to);
  // Few rows: streams the weights once per six rows or fewer.
  void (*gemv)(const MatmulArgs& args, int32_t row_begin, int32_t row_end);
  // Many rows: raises a panel of weights to float32 once.
  PackedKernels gemm;
  // Takes the place of both for bf16 weights, with sums of its own, if not null.
  const PackedKernels* bf16;
  // Takes the place of both where HasIntegerProducts() and activations are rounded to INT8: the
  // same bits from every table (integer.h).
  const PackedKernels* integer;

  void (*convert)(const void* from, DType dtype, int32_t n, float* to);
  void (*rms_norm)(const float* x, const void* weight, DType dtype, float eps, int32_t n,
                   float* out);
  // gate = silu(gate) * up
  void (*silu_mul)(float* gate, const float* up, int32_t n);
  // The clamped form of device/ops.h.
  void (*clamped_swiglu)(float* gate, const float* up, float alpha, float limit, int32_t n);
  void (*sigmoid)(float* x, int32_t n);
  void (*clamp)(float* x, float limit, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);
  // Columns [col_begin, col_end).
  void (*transposed)(const TransposedArgs& args, int32_t col_begin, int32_t col_end);
  // One head: pairs element i with i + half.
  void (*rope)(float* head, const float* cos, const float* sin, int32_t half);
  // One head: pairs neighbours.
  void (*rope_neighbours)(float* head, const float* cos, const float* sin, int32_t half);
  void (*softmax)(float* x, int32_t n);
  // `scores` holds queries * (positions - first + 1, rounded up to 16) floats.
  void (*attention)(const AttentionArgs& args, float* scores);
  void (*combine)(const CombineArgs& args);
  // x += y
  void (*add)(float* x, const float* y, int64_t n);
};

const KernelTable& ScalarKernels();
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();  // without integer products: see below
const PackedKernels& AmxBf16Kernels();
// For KernelTable::integer, on AVX-512 VNNI and on AMX-INT8 with it.
const PackedKernels& VnniIntegerKernels();
const PackedKernels& AmxIntegerKernels();

// Names of the tables that this CPU and operating system can run, slowest first.
std::vector<std::string> AvailableKernelNames();
// "auto" gives the fastest of those that share the same bits, so never "amx". Errors name what
// there is. Choosing "amx" asks the operating system to allow tiles in this process.
Result<const KernelTable*> SelectKernels(const std::string& name);

}  // namespace expertflow::cpu
