// The ops of a forward pass, on the compute stream of a device.
//
// Activations are float32, row-major, one row per token. Weights are in the checkpoint's type (F32,
// F16, BF16) and are raised to float32; sums are float32.
//
// Batch invariance: a row's result does not depend on which other rows are in the call, on the
// number of threads, or on the machine, as long as devices name the same arithmetic
// (DeviceProperties). "16 lanes" is: each dot product is summed over 16 interleaved lanes (element
// i goes to lane i % 16, in ascending order, fused multiply-add), the lanes are added in a fixed
// tree. Prefill in chunks, decode, batches and re-runs after a failure give the same bits because
// of this.
//
// Pointers to activations, weights and KV blocks are device pointers. Small index lists (spans) are
// host memory and may be reused when the call returns.
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"

namespace expertflow {

struct WeightMatrix {  // [rows, cols], row-major: a row holds one output's weights
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int32_t rows = 0;
  int32_t cols = 0;
};

struct WeightVector {  // [size]; data == nullptr: absent
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int32_t size = 0;
};

// out[m, w.rows] = x[m, w.cols] * w^T + bias
struct LinearJob {
  WeightMatrix weight;
  WeightVector bias;
  const float* x = nullptr;
  float* out = nullptr;
};

// SwiGLU: down(silu(gate(x)) * up(x))
struct MlpWeights {
  WeightMatrix gate;  // [intermediate, hidden]
  WeightMatrix up;    // [intermediate, hidden]
  WeightMatrix down;  // [hidden, intermediate]
};

struct ExpertRow {
  int32_t in_row = 0;   // row of x: the token
  int32_t out_row = 0;  // row of out: token * top_k + slot
};

struct ExpertJob {
  MlpWeights weights;
  std::span<const ExpertRow> rows;
};

// One query row: attends to positions 0..position of its sequence.
struct AttentionRow {
  const int32_t* block_table = nullptr;  // host: the sequence's KV blocks, in order
  int32_t position = 0;
};

// KV blocks of one layer: block b holds keys [block_tokens, kv_heads, head_dim] at
// keys + b * block_stride, values likewise.
struct KvLayer {
  float* keys = nullptr;
  float* values = nullptr;
  int64_t block_stride = 0;  // in floats
  int32_t block_tokens = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
};

struct AttentionShape {
  int32_t heads = 0;  // a multiple of kv_heads
  float scale = 0;    // applied to query . key
};

class Ops {
 public:
  virtual ~Ops() = default;

  // out[m, table.cols] = table[ids[m]]. REQUIRES: 0 <= id < table.rows
  virtual void Embed(const WeightMatrix& table, std::span<const int32_t> ids, float* out) = 0;

  // out[m, n] = x / sqrt(mean(x^2) + eps) * weight; out may be x.
  virtual void RmsNorm(const float* x, const WeightVector& weight, float eps, int32_t m,
                       float* out) = 0;

  // All jobs in one go; they must be independent of each other.
  virtual void Linear(std::span<const LinearJob> jobs, int32_t m) = 0;

  // Rotates the first `rotary_dim` elements of each head of x[m, heads, head_dim] in place, pairing
  // element i with i + rotary_dim / 2. cos_sin[position][0..rotary_dim/2) = cos, then the sines.
  virtual void Rope(float* x, int32_t heads, int32_t head_dim, int32_t rotary_dim,
                    std::span<const AttentionRow> rows, const float* cos_sin) = 0;

  // Writes row i of keys and values [m, kv_heads, head_dim] to the KV block of rows[i].
  virtual void StoreKv(const KvLayer& kv, const float* keys, const float* values,
                       std::span<const AttentionRow> rows) = 0;

  // out[m, heads, head_dim] = softmax(scale * q . K) V, causal, per row. Sums over positions run in
  // ascending order whatever the block size.
  virtual void Attention(const AttentionShape& shape, const KvLayer& kv, const float* q,
                         std::span<const AttentionRow> rows, float* out) = 0;

  // Softmax over logits[m, experts], then the k largest, by descending probability, ties to the
  // lower id. ids[m, k], weights[m, k]; with `normalise` a row's weights are divided by their sum.
  virtual void RouteTopK(const float* logits, int32_t m, int32_t experts, int32_t k, bool normalise,
                         int32_t* ids, float* weights) = 0;

  // out[row.out_row, hidden] = mlp(x[row.in_row, hidden]) for every row of every job.
  virtual void ExpertMlp(std::span<const ExpertJob> jobs, const float* x, float* out) = 0;

  // out[m, hidden] = mlp(x) (a dense MLP or a shared expert).
  virtual void Mlp(const MlpWeights& weights, const float* x, int32_t m, float* out) = 0;

  // residual[t] += sum over slots s, ascending, of weights[t, s] * expert_out[t * k + s]
  //                + sigmoid(shared_gate[t]) * shared_out[t]
  // shared_out or shared_gate may be null (no shared expert; ungated).
  virtual void CombineExperts(const float* expert_out, const float* weights, int32_t m, int32_t k,
                              int32_t hidden, const float* shared_out, const float* shared_gate,
                              float* residual) = 0;

  // x += y over n elements
  virtual void Add(float* x, const float* y, int64_t n) = 0;
};

}  // namespace expertflow
