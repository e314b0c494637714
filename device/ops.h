// The ops of a forward pass, on the compute stream of a device.
//
// Activations are float32, row-major, one row per token. Weights are in the checkpoint's type (F32,
// F16, BF16) and are raised to float32; sums are float32.
//
// Matrices may be quantised (common/dtype.h): a weight is what its code stands for times its
// group's scale, rounded to float32, so the result is bit by bit that of the same matrix as F32.
// Rows are whole groups. Codes of 4 bits: of each 16 elements the first eight are in the low halves
// of eight bytes, the others in the high halves.
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
  // Rows [first_row, first_row + rows) of a matrix of so many; 0: it is all of it.
  int32_t stored_rows = 0;
  int32_t first_row = 0;

  WeightMatrix Rows(int32_t first, int32_t count) const {
    return {data, dtype, count, cols, stored_rows == 0 ? rows : stored_rows, first_row + first};
  }
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
  // Floats from one row to the next; 0: the rows lie close together.
  int32_t x_stride = 0;
  int32_t out_stride = 0;
};

// How an MLP joins the results of gate and up.
struct Activation {
  enum class Kind : uint8_t {
    kSwiglu,  // silu(gate) * up
    // With g = min(gate, limit) and u = max(-limit, min(up, limit)): g sigmoid(alpha g) (u + 1)
    kClampedSwiglu,
  };
  Kind kind = Kind::kSwiglu;
  float alpha = 0;
  float limit = 0;
};

// down(join(gate(x), up(x)))
struct MlpWeights {
  WeightMatrix gate;  // [intermediate, hidden]
  WeightMatrix up;    // [intermediate, hidden]
  WeightMatrix down;  // [hidden, intermediate]
  WeightVector gate_bias;
  WeightVector up_bias;
  WeightVector down_bias;
  Activation activation;
};

struct ExpertRow {
  int32_t in_row = 0;   // row of x: the token
  int32_t out_row = 0;  // row of out: token * top_k + slot
};

struct ExpertJob {
  MlpWeights weights;
  std::span<const ExpertRow> rows;
};

// One query row: attends to positions 0..position of its sequence (or the last of them).
struct AttentionRow {
  const int32_t* block_table = nullptr;  // host: the sequence's KV blocks, in order
  int32_t position = 0;
};

// Bytes of a key or value of one head in the KV cache. kInt8: integers, with zeros up to whole
// groups of kQuantisedGroup, then a float32 scale for each group.
constexpr int64_t KvHeadBytes(DType dtype, int32_t head_dim) {
  const auto group = static_cast<int64_t>(kQuantisedGroup);
  const int64_t groups = (head_dim + group - 1) / group;
  if (dtype == DType::kInt8) return groups * (group + static_cast<int64_t>(sizeof(float)));
  return head_dim * static_cast<int64_t>(DTypeBytes(dtype));
}

// KV blocks of one layer: block b holds keys [block_tokens, kv_heads, head_dim] at
// keys + b * block_stride, values likewise, in kF32, kBF16 or kInt8. Without `values` a key begins
// with its value, whose size is shared_dim (the latent vector of multi-head latent attention).
struct KvLayer {
  void* keys = nullptr;
  void* values = nullptr;
  int64_t block_stride = 0;  // bytes
  int32_t block_tokens = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t shared_dim = 0;
  DType dtype = DType::kF32;

  int32_t value_dim() const { return values == nullptr ? shared_dim : head_dim; }
  int64_t head_bytes() const { return KvHeadBytes(dtype, head_dim); }
  int64_t token_bytes() const { return kv_heads * head_bytes(); }
};

struct AttentionShape {
  int32_t heads = 0;   // a multiple of kv_heads
  float scale = 0;     // applied to query . key
  int32_t window = 0;  // attends to the last `window` positions only, its own included; 0: to all
  // [heads] or absent: a score of its own for each head, which takes its part of the softmax and
  // has no value.
  WeightVector sinks;
};

// Which elements of a head are rotated together.
enum class RopePairs : uint8_t {
  kHalves,      // i and i + rotary_dim / 2
  kNeighbours,  // 2 i and 2 i + 1
};

// How router logits become ids and weights.
struct RouterShape {
  enum class Scores : uint8_t {
    kSoftmax,          // over all experts
    kSoftmaxOfChosen,  // the largest logits are chosen; softmax over those
    kSigmoid,
  };
  enum class GroupScore : uint8_t { kLargest, kSumOfTwo };

  int32_t experts = 0;
  int32_t top_k = 0;
  Scores scores = Scores::kSoftmax;
  bool normalise = false;  // a row's weights are divided by their sum
  float scale = 1;         // and then multiplied with this
  // [experts] or absent: added to the scores for choosing; the weights are without it.
  WeightVector correction;
  // Experts lie in `groups` groups of equal size; only those of the `groups_kept` best groups can
  // be chosen. A group is as good as its largest score, or its two largest together.
  int32_t groups = 1;
  int32_t groups_kept = 1;
  GroupScore group_score = GroupScore::kLargest;
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

  // out[m, w.cols] = x[m, w.rows] * w: each output is summed over the rows of w, ascending, by
  // fused multiply-add. No bias. The jobs must be independent of each other.
  virtual void LinearTransposed(std::span<const LinearJob> jobs, int32_t m) = 0;

  // Rotates the first `rotary_dim` elements of each head of x[m, heads, head_dim] in place.
  // cos_sin[position][0..rotary_dim/2) = cos of each pair, then the sines.
  virtual void Rope(float* x, int32_t heads, int32_t head_dim, int32_t rotary_dim, RopePairs pairs,
                    std::span<const AttentionRow> rows, const float* cos_sin) = 0;

  // Writes row i of keys and values [m, kv_heads, head_dim] to the KV block of rows[i]. Without
  // kv.values a stored key is row i of values [m, kv_heads, shared_dim] and then of keys
  // [m, kv_heads, head_dim - shared_dim]. kBF16 rounds to nearest even; kInt8 takes a group's
  // largest absolute value by 127 as scale, and the nearest integers. What is not finite gives NaN:
  // as kBF16 in its place, as kInt8 in its whole group.
  virtual void StoreKv(const KvLayer& kv, const float* keys, const float* values,
                       std::span<const AttentionRow> rows) = 0;

  // out[m, heads, value_dim] = softmax(scale * q . K) V, causal, per row. Sums over positions run
  // in ascending order whatever the block size. Keys and values are raised to float32: the result
  // is bit by bit that of the same numbers as kF32.
  virtual void Attention(const AttentionShape& shape, const KvLayer& kv, const float* q,
                         std::span<const AttentionRow> rows, float* out) = 0;

  // Chooses top_k experts for each row of logits[m, experts]; ties go to the lower id. ids and
  // weights [m, top_k], by descending weight.
  virtual void RouteTopK(const float* logits, int32_t m, const RouterShape& router, int32_t* ids,
                         float* weights) = 0;

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

  // x = factor * x over n elements
  virtual void Scale(float* x, float factor, int64_t n) = 0;

  // x = max(-limit, min(x, limit)) over n elements; NaN stays NaN.
  virtual void Clamp(float* x, float limit, int64_t n) = 0;
};

}  // namespace expertflow
