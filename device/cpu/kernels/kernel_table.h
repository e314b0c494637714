// The CPU kernels behind plain function pointers, one table per instruction set.
//
// Only this header is shared between code for the x86-64 baseline and the sources compiled for
// AVX2 or AVX-512. Those sources define nothing but their table: everything else in them has
// internal linkage, so that the linker can never pick an AVX copy of a function for baseline code.
//
// Every table gives the same bits (the rule of device/ops.h): the algorithms are templates over a
// thin back end (elementwise.h, linear.h, attention.h) whose operations are exact in IEEE 754.
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
  const void* weight = nullptr;  // [rows, cols]
  DType weight_dtype = DType::kBF16;
  const void* bias = nullptr;  // [rows] or null
  DType bias_dtype = DType::kBF16;
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t m = 0;
  const float* const* x = nullptr;  // [m] rows of [cols]
  const float* packed_x = nullptr;  // the same rows as pack_x() laid them out (gemm only)
  float* const* out = nullptr;      // [m] rows of [rows]
};

// The query heads of one row that share a key/value head.
struct AttentionArgs {
  const float* q = nullptr;       // [queries, head_dim]
  float* out = nullptr;           // [queries, head_dim]
  const float* keys = nullptr;    // of this key/value head, in block 0 of the layer
  const float* values = nullptr;  // likewise
  const int32_t* block_table = nullptr;
  int64_t block_stride = 0;  // floats
  int64_t token_stride = 0;  // floats
  int32_t block_tokens = 0;
  int32_t positions = 0;  // attends to [0, positions)
  int32_t queries = 0;
  int32_t head_dim = 0;
  float scale = 0;
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

struct KernelTable {
  const char* name;

  // Few rows: streams the weights once per six rows or fewer.
  void (*gemv)(const MatmulArgs& args, int32_t row_begin, int32_t row_end);

  // Many rows: weights are raised to float32 once per panel of gemm_panel_rows(cols) rows and
  // multiplied with activation tiles of gemm_tile_rows rows.
  int32_t gemm_tile_rows;
  int32_t (*gemm_panel_rows)(int32_t cols);
  size_t (*gemm_scratch_floats)(int32_t cols);
  // REQUIRES: args.packed_x != nullptr, row_end - row_begin <= gemm_panel_rows(cols)
  void (*gemm)(const MatmulArgs& args, int32_t row_begin, int32_t row_end, float* scratch);
  // Tile t takes gemm_tile_rows * (cols rounded up to 16) floats of `packed`.
  void (*pack_x)(const float* const* x, int32_t m, int32_t cols, int32_t tile, float* packed);

  void (*convert)(const void* from, DType dtype, int32_t n, float* to);
  void (*rms_norm)(const float* x, const void* weight, DType dtype, float eps, int32_t n,
                   float* out);
  // gate = silu(gate) * up
  void (*silu_mul)(float* gate, const float* up, int32_t n);
  // One head: pairs element i with i + half.
  void (*rope)(float* head, const float* cos, const float* sin, int32_t half);
  void (*softmax)(float* x, int32_t n);
  // `scores` holds queries * (positions rounded up to 16) floats.
  void (*attention)(const AttentionArgs& args, float* scores);
  void (*combine)(const CombineArgs& args);
  // x += y
  void (*add)(float* x, const float* y, int64_t n);
};

const KernelTable& ScalarKernels();
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();

// Names of the tables that this CPU and operating system can run, slowest first.
std::vector<std::string> AvailableKernelNames();
// "auto" gives the fastest. Errors name what there is.
Result<const KernelTable*> SelectKernels(const std::string& name);

}  // namespace expertflow::cpu
