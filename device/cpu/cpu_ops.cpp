#include "device/cpu/cpu_ops.h"

#include <algorithm>

#include "common/check.h"
#include "device/cpu/kv_encoding.h"
#include "device/cpu/router.h"

namespace expertflow::cpu {
namespace {

// Up to here the weights are streamed once per few rows; above, raising them once pays off.
constexpr int32_t kGemvRowsMax = 8;
// Rows of one pass: bounds the scratch memory.
constexpr int32_t kPassRowsMax = 512;

// Rough costs on one thread, to decide whether a region is worth its start; they need not be right.
constexpr double kWeightBytesPerNs = 20;
constexpr double kMultiplyAddsPerNs = 25;
constexpr double kRegionWorthNs = 10'000;
// A chunk of streamed weights should be worth at least this.
constexpr double kChunkNs = 2'000;

double CostNs(const MatmulArgs& args, int32_t rows) {
  const double elements = static_cast<double>(rows) * args.cols;
  return elements * static_cast<double>(DTypeBytes(args.weight_dtype)) / kWeightBytesPerNs +
         elements * args.m / kMultiplyAddsPerNs;
}

int64_t PaddedCols(int32_t cols) {
  return (int64_t{cols} + kLanes - 1) / kLanes * kLanes;
}

// Of MatmulArgs and TransposedArgs.
template <typename Args>
void SetWeight(const WeightMatrix& weight, Args* args) {
  const int32_t stored = weight.stored_rows == 0 ? weight.rows : weight.stored_rows;
  CHECK(weight.first_row >= 0 && weight.rows <= stored - weight.first_row);
  args->weight = weight.data;
  args->weight_dtype = weight.dtype;
  args->stored_rows = stored;
  args->first_row = weight.first_row;
  args->rows = weight.rows;
  args->cols = weight.cols;
  if (IsQuantised(weight.dtype)) return;
  args->weight =
      static_cast<const std::byte*>(weight.data) +
      int64_t{weight.first_row} * weight.cols * static_cast<int64_t>(DTypeBytes(weight.dtype));
  args->first_row = 0;
}

MatmulArgs MakeArgs(const WeightMatrix& weight, const WeightVector& bias, int32_t m,
                    const float* const* x, float* const* out) {
  CHECK(bias.data == nullptr || bias.size == weight.rows);
  MatmulArgs args;
  SetWeight(weight, &args);
  args.bias = bias.data;
  args.bias_dtype = bias.dtype;
  args.m = m;
  args.x = x;
  args.out = out;
  return args;
}

int64_t XStride(const LinearJob& job, int32_t width) {
  return job.x_stride == 0 ? width : job.x_stride;
}

int64_t OutStride(const LinearJob& job, int32_t width) {
  return job.out_stride == 0 ? width : job.out_stride;
}

}  // namespace

CpuOps::CpuOps(const KernelTable& kernels, bool integer_products, ThreadPool& pool,
               StreamProgress& progress)
    : kernels_(kernels),
      integer_products_(integer_products),
      pool_(pool),
      progress_(progress),
      thread_scratch_(static_cast<size_t>(pool.threads())) {}

template <typename Body>
void CpuOps::ForEach(int32_t count, double ns_each, const Body& body) {
  const double total_ns = ns_each * count;
  if (pool_.threads() == 1 || count <= 1 || total_ns < kRegionWorthNs) {
    for (int32_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  const int32_t chunks = static_cast<int32_t>(
      std::min<double>({double{kPassRowsMax}, double(count), std::max(2.0, total_ns / kChunkNs)}));
  pool_.ParallelFor(chunks, [&](int32_t chunk, int32_t thread) {
    const auto begin = static_cast<int32_t>(int64_t{count} * chunk / chunks);
    const auto end = static_cast<int32_t>(int64_t{count} * (chunk + 1) / chunks);
    for (int32_t i = begin; i < end; ++i) body(i, thread);
  });
}

void CpuOps::Embed(const WeightMatrix& table, std::span<const int32_t> ids, float* out) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  const MatmulArgs args = MakeArgs(table, {}, 0, nullptr, nullptr);
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= 0 && ids[i] < table.rows);
    kernels_.raise_row(args, ids[i], out + i * static_cast<size_t>(table.cols));
  }
}

void CpuOps::RmsNorm(const float* x, const WeightVector& weight, float eps, int32_t m, float* out) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  CHECK(weight.data != nullptr);
  const int32_t n = weight.size;
  ForEach(m, n / 4.0, [&](int32_t i, int32_t) {
    const int64_t at = int64_t{i} * n;
    kernels_.rms_norm(x + at, weight.data, weight.dtype, eps, n, out + at);
  });
}

void CpuOps::Linear(std::span<const LinearJob> jobs, int32_t m) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  for (int32_t first = 0; first < m; first += kPassRowsMax) {
    const int32_t pass_rows = std::min(kPassRowsMax, m - first);
    const size_t stride = static_cast<size_t>(pass_rows);
    in_rows_.resize(jobs.size() * stride);
    out_rows_.resize(jobs.size() * stride);
    products_.clear();
    for (size_t j = 0; j < jobs.size(); ++j) {
      const LinearJob& job = jobs[j];
      for (int32_t i = 0; i < pass_rows; ++i) {
        const size_t at = j * stride + static_cast<size_t>(i);
        in_rows_[at] = job.x + (first + i) * XStride(job, job.weight.cols);
        out_rows_[at] = job.out + (first + i) * OutStride(job, job.weight.rows);
      }
      // Jobs that read the same x share its rows, and so its packed form.
      size_t source = 0;
      while (jobs[source].x != job.x || jobs[source].weight.cols != job.weight.cols ||
             jobs[source].x_stride != job.x_stride) {
        ++source;
      }
      Product product;
      product.args = MakeArgs(job.weight, job.bias, pass_rows, in_rows_.data() + source * stride,
                              out_rows_.data() + j * stride);
      products_.push_back(product);
    }
    RunProducts();
  }
}

void CpuOps::RunProducts() {
  const int64_t packed_floats = PackProducts(nullptr);
  if (packed_floats > 0) PackProducts(packed_.Get(static_cast<size_t>(packed_floats)));
  CutProducts();
  double total_ns = 0;
  for (const Product& product : products_) {
    total_ns += CostNs(product.args, product.args.rows) * (product.joins ? 2 : 1);
  }
  const auto run = [this](int32_t i, int32_t thread) {
    const Chunk& chunk = chunks_[static_cast<size_t>(i)];
    RunProduct(products_[static_cast<size_t>(chunk.product)], chunk.begin, chunk.end, thread);
  };
  const auto count = static_cast<int32_t>(chunks_.size());
  if (total_ns < kRegionWorthNs) {
    for (int32_t i = 0; i < count; ++i) run(i, 0);
  } else {
    pool_.ParallelFor(count, run);
  }
}

const PackedKernels* CpuOps::PackedFor(const MatmulArgs& args) const {
  if (kernels_.bf16 != nullptr && args.weight_dtype == DType::kBF16) return kernels_.bf16;
  if (integer_products_ && HasIntegerProducts(args.weight_dtype)) return kernels_.integer;
  return args.m > kGemvRowsMax ? &kernels_.gemm : nullptr;
}

int64_t CpuOps::PackProducts(float* packed) {
  int64_t floats = 0;
  const PackedKernels* last_kernels = nullptr;
  const float* const* last_x = nullptr;
  const float* last_packed = nullptr;
  const auto pack = [&](MatmulArgs& args) {
    const PackedKernels* kernels = PackedFor(args);
    if (kernels == nullptr) return;
    if (kernels != last_kernels || args.x != last_x) {
      const int32_t tiles = (args.m + kernels->tile_rows - 1) / kernels->tile_rows;
      const int32_t tile_floats = kernels->tile_floats(args.cols);
      if (packed != nullptr) {
        float* to = packed + floats;
        ForEach(tiles, tile_floats / 4.0, [&](int32_t tile, int32_t) {
          kernels->pack_x(args.x, args.m, args.cols, tile, to);
        });
        last_packed = to;
      }
      last_kernels = kernels;
      last_x = args.x;
      floats += int64_t{tiles} * tile_floats;
    }
    args.packed_x = last_packed;
  };
  for (Product& product : products_) {
    pack(product.args);
    if (product.joins) pack(product.up);
  }
  return floats;
}

void CpuOps::CutProducts() {
  chunks_.clear();
  const auto chunk_rows = [&](const MatmulArgs& args) {
    if (const PackedKernels* packed = PackedFor(args)) return packed->panel_rows(args.cols);
    // Large enough to stream well, small enough to share the end fairly.
    const double row_ns = std::max(CostNs(args, 1), 1e-3);
    const double share = args.rows / (8.0 * pool_.threads());
    const double rows = std::clamp(std::max(kChunkNs / row_ns, share), 4.0, 1e6);
    return static_cast<int32_t>(rows) / 4 * 4;
  };
  for (size_t p = 0; p < products_.size(); ++p) {
    const MatmulArgs& args = products_[p].args;
    int32_t step = chunk_rows(args);
    // Weights of another type may go another way.
    if (products_[p].joins) step = std::min(step, chunk_rows(products_[p].up));
    for (int32_t begin = 0; begin < args.rows; begin += step) {
      chunks_.push_back({static_cast<int32_t>(p), begin, std::min(args.rows, begin + step)});
    }
  }
}

void CpuOps::RunProduct(const Product& product, int32_t begin, int32_t end, int32_t thread) {
  const auto multiply = [&](const MatmulArgs& args) {
    if (const PackedKernels* packed = PackedFor(args)) {
      float* scratch =
          thread_scratch_[static_cast<size_t>(thread)].Get(packed->scratch_floats(args.cols));
      packed->multiply(args, begin, end, scratch);
    } else {
      kernels_.gemv(args, begin, end);
    }
  };
  multiply(product.args);
  if (!product.joins) return;
  multiply(product.up);
  const Activation& activation = product.activation;
  for (int32_t i = 0; i < product.args.m; ++i) {
    float* gate = product.args.out[i] + begin;
    const float* up = product.up.out[i] + begin;
    if (activation.kind == Activation::Kind::kClampedSwiglu) {
      kernels_.clamped_swiglu(gate, up, activation.alpha, activation.limit, end - begin);
    } else {
      kernels_.silu_mul(gate, up, end - begin);
    }
  }
}

void CpuOps::LinearTransposed(std::span<const LinearJob> jobs, int32_t m) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  constexpr int32_t kStep = 64;  // columns: whole cache lines of every type
  int32_t chunks_each = 0;
  double ns_each = 0;
  for (const LinearJob& job : jobs) {
    CHECK(job.bias.data == nullptr);
    chunks_each = std::max(chunks_each, (job.weight.cols + kStep - 1) / kStep);
    ns_each = std::max(ns_each, 2.0 * job.weight.rows * kStep * m / kMultiplyAddsPerNs);
  }
  ForEach(static_cast<int32_t>(jobs.size()) * chunks_each, ns_each, [&](int32_t task, int32_t) {
    const LinearJob& job = jobs[static_cast<size_t>(task / chunks_each)];
    const int32_t begin = task % chunks_each * kStep;
    if (begin >= job.weight.cols) return;
    TransposedArgs args;
    SetWeight(job.weight, &args);
    args.m = m;
    args.x = job.x;
    args.x_stride = XStride(job, job.weight.rows);
    args.out = job.out;
    args.out_stride = OutStride(job, job.weight.cols);
    kernels_.transposed(args, begin, std::min(begin + kStep, job.weight.cols));
  });
}

void CpuOps::Rope(float* x, int32_t heads, int32_t head_dim, int32_t rotary_dim, RopePairs pairs,
                  std::span<const AttentionRow> rows, const float* cos_sin) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  CHECK(rotary_dim % 2 == 0 && rotary_dim <= head_dim);
  const int32_t half = rotary_dim / 2;
  const auto rotate = pairs == RopePairs::kHalves ? kernels_.rope : kernels_.rope_neighbours;
  ForEach(static_cast<int32_t>(rows.size()), heads * rotary_dim / 4.0, [&](int32_t i, int32_t) {
    const float* cos = cos_sin + int64_t{rows[static_cast<size_t>(i)].position} * rotary_dim;
    for (int32_t h = 0; h < heads; ++h) {
      rotate(x + (int64_t{i} * heads + h) * head_dim, cos, cos + half, half);
    }
  });
}

void CpuOps::StoreKv(const KvLayer& kv, const float* keys, const float* values,
                     std::span<const AttentionRow> rows) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  const int64_t token_floats = int64_t{kv.kv_heads} * kv.head_dim;
  const auto dim = static_cast<size_t>(kv.head_dim);
  const int32_t own_dim = kv.head_dim - kv.shared_dim;
  const double ns_each = static_cast<double>(token_floats) / (kv.dtype == DType::kF32 ? 4 : 0.5);
  ForEach(static_cast<int32_t>(rows.size()), ns_each, [&](int32_t i, int32_t thread) {
    const AttentionRow& row = rows[static_cast<size_t>(i)];
    const int64_t to = row.block_table[row.position / kv.block_tokens] * kv.block_stride +
                       row.position % kv.block_tokens * kv.token_bytes();
    for (int32_t h = 0; h < kv.kv_heads; ++h) {
      const int64_t head = int64_t{i} * kv.kv_heads + h;
      const int64_t at = to + h * kv.head_bytes();
      std::byte* key = static_cast<std::byte*>(kv.keys) + at;
      if (kv.values != nullptr) {
        EncodeKvHead({keys + head * kv.head_dim, dim}, kv.dtype, key);
        EncodeKvHead({values + head * kv.head_dim, dim}, kv.dtype,
                     static_cast<std::byte*>(kv.values) + at);
        continue;
      }
      float* joined = thread_scratch_[static_cast<size_t>(thread)].Get(dim);
      std::copy_n(values + head * kv.shared_dim, kv.shared_dim, joined);
      std::copy_n(keys + head * own_dim, own_dim, joined + kv.shared_dim);
      EncodeKvHead({joined, dim}, kv.dtype, key);
    }
  });
}

const float* CpuOps::Raise(const WeightVector& weights) {
  if (weights.data == nullptr) return nullptr;
  float* to = raised_.Get(static_cast<size_t>(weights.size));
  kernels_.convert(weights.data, weights.dtype, weights.size, to);
  return to;
}

// A sequence's rows read the same keys and values: they follow each other, head by head.
void CpuOps::OrderAttention(std::span<const AttentionRow> rows, int32_t kv_heads) {
  attention_tasks_.clear();
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].block_table == rows[begin].block_table) ++end;
    for (int32_t head = 0; head < kv_heads; ++head) {
      for (size_t i = begin; i < end; ++i) {
        attention_tasks_.push_back({static_cast<int32_t>(i), head});
      }
    }
  }
}

void CpuOps::Attention(const AttentionShape& shape, const KvLayer& kv, const float* q,
                       std::span<const AttentionRow> rows, float* out) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  CHECK(kv.kv_heads > 0 && shape.heads % kv.kv_heads == 0 && kv.block_tokens > 0);
  CHECK(shape.sinks.data == nullptr || shape.sinks.size == shape.heads);
  CHECK(kv.dtype == DType::kF32 || kv.dtype == DType::kBF16 || kv.dtype == DType::kInt8);
  const float* sinks = Raise(shape.sinks);
  const int32_t queries = shape.heads / kv.kv_heads;
  const int32_t value_dim = kv.value_dim();
  const auto m = static_cast<int32_t>(rows.size());
  const auto first_of = [&](const AttentionRow& row) {
    return shape.window > 0 ? std::max(0, row.position + 1 - shape.window) : 0;
  };
  double positions = 0;
  for (const AttentionRow& row : rows) positions += row.position + 1 - first_of(row);
  OrderAttention(rows, kv.kv_heads);
  const double ns_each =
      m == 0 ? 0 : positions / m * queries * ((kv.head_dim + value_dim) / kMultiplyAddsPerNs + 1);
  ForEach(m * kv.kv_heads, ns_each, [&](int32_t task, int32_t thread) {
    const auto [i, kv_head] = attention_tasks_[static_cast<size_t>(task)];
    const AttentionRow& row = rows[static_cast<size_t>(i)];
    const int64_t first_head = int64_t{i} * shape.heads + kv_head * queries;
    AttentionArgs args;
    args.q = q + first_head * kv.head_dim;
    args.out = out + first_head * value_dim;
    const int64_t head_at = kv_head * kv.head_bytes();
    args.keys = static_cast<const std::byte*>(kv.keys) + head_at;
    args.values =
        static_cast<const std::byte*>(kv.values == nullptr ? kv.keys : kv.values) + head_at;
    args.kv_dtype = kv.dtype;
    args.block_table = row.block_table;
    args.block_stride = kv.block_stride;
    args.token_stride = kv.token_bytes();
    args.block_tokens = kv.block_tokens;
    args.first = first_of(row);
    args.positions = row.position + 1;
    args.queries = queries;
    args.head_dim = kv.head_dim;
    args.value_dim = value_dim;
    args.scale = shape.scale;
    if (sinks != nullptr) args.sinks = sinks + kv_head * queries;
    const int64_t floats = PaddedCols(args.positions - args.first + 1) * queries;
    kernels_.attention(
        args, thread_scratch_[static_cast<size_t>(thread)].Get(static_cast<size_t>(floats)));
  });
}

void CpuOps::RouteTopK(const float* logits, int32_t m, const RouterShape& router, int32_t* ids,
                       float* weights) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  const int32_t k = router.top_k;
  CHECK(k >= 0 && k <= router.experts && router.groups >= 1 &&
        router.experts % router.groups == 0 && router.groups_kept <= router.groups);
  CHECK(router.correction.data == nullptr || router.correction.size == router.experts);
  const float* correction = Raise(router.correction);
  const double ns_each = static_cast<double>(router.experts) * (k + 1);
  ForEach(m, ns_each, [&](int32_t i, int32_t thread) {
    Scratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
    RouteRow(kernels_, router, correction, logits + int64_t{i} * router.experts, &scratch,
             ids + int64_t{i} * k, weights + int64_t{i} * k);
  });
}

void CpuOps::ExpertMlp(std::span<const ExpertJob> jobs, const float* x, float* out) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  parts_.clear();
  in_rows_.clear();
  out_rows_.clear();
  for (const ExpertJob& job : jobs) {
    size_t next = 0;
    while (next < job.rows.size()) {
      if (in_rows_.size() == kPassRowsMax) {
        RunMlpParts();
        parts_.clear();
        in_rows_.clear();
        out_rows_.clear();
      }
      const size_t count = std::min(job.rows.size() - next, kPassRowsMax - in_rows_.size());
      parts_.push_back(
          {&job.weights, static_cast<int32_t>(in_rows_.size()), static_cast<int32_t>(count)});
      for (const ExpertRow& row : job.rows.subspan(next, count)) {
        in_rows_.push_back(x + int64_t{row.in_row} * job.weights.gate.cols);
        out_rows_.push_back(out + int64_t{row.out_row} * job.weights.down.rows);
      }
      next += count;
    }
  }
  RunMlpParts();
}

void CpuOps::Mlp(const MlpWeights& weights, const float* x, int32_t m, float* out) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  for (int32_t first = 0; first < m; first += kPassRowsMax) {
    const int32_t pass_rows = std::min(kPassRowsMax, m - first);
    parts_.assign(1, {&weights, 0, pass_rows});
    in_rows_.clear();
    out_rows_.clear();
    for (int32_t i = first; i < first + pass_rows; ++i) {
      in_rows_.push_back(x + int64_t{i} * weights.gate.cols);
      out_rows_.push_back(out + int64_t{i} * weights.down.rows);
    }
    RunMlpParts();
  }
}

void CpuOps::RunMlpParts() {
  int64_t floats = 0;
  for (const MlpPart& part : parts_) {
    const MlpWeights& w = *part.weights;
    CHECK(w.up.rows == w.gate.rows && w.up.cols == w.gate.cols && w.down.cols == w.gate.rows);
    floats += 2 * PaddedCols(w.gate.rows) * part.m;
  }
  float* at = intermediate_.Get(static_cast<size_t>(floats));
  const size_t rows = in_rows_.size();
  gate_rows_.resize(rows);
  up_rows_.resize(rows);
  down_in_rows_.resize(rows);
  products_.clear();
  for (const MlpPart& part : parts_) {
    const MlpWeights& w = *part.weights;
    const auto first = static_cast<size_t>(part.first);
    for (size_t i = first; i < first + static_cast<size_t>(part.m); ++i) {
      gate_rows_[i] = at;
      down_in_rows_[i] = at;
      up_rows_[i] = at + PaddedCols(w.gate.rows);
      at += 2 * PaddedCols(w.gate.rows);
    }
    Product product;
    product.joins = true;
    product.activation = w.activation;
    product.args =
        MakeArgs(w.gate, w.gate_bias, part.m, in_rows_.data() + first, gate_rows_.data() + first);
    product.up =
        MakeArgs(w.up, w.up_bias, part.m, in_rows_.data() + first, up_rows_.data() + first);
    products_.push_back(product);
  }
  RunProducts();

  products_.clear();
  for (const MlpPart& part : parts_) {
    const auto first = static_cast<size_t>(part.first);
    Product product;
    product.args = MakeArgs(part.weights->down, part.weights->down_bias, part.m,
                            down_in_rows_.data() + first, out_rows_.data() + first);
    products_.push_back(product);
  }
  RunProducts();
}

void CpuOps::CombineExperts(const float* expert_out, const float* weights, int32_t m, int32_t k,
                            int32_t hidden, const float* shared_out, const float* shared_gate,
                            float* residual) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  ForEach(m, hidden * (k + 2) / 4.0, [&](int32_t i, int32_t) {
    CombineArgs args;
    args.expert_out = expert_out + int64_t{i} * k * hidden;
    args.weights = weights + int64_t{i} * k;
    if (shared_out != nullptr) args.shared_out = shared_out + int64_t{i} * hidden;
    if (shared_gate != nullptr) args.shared_gate = shared_gate + i;
    args.residual = residual + int64_t{i} * hidden;
    args.k = k;
    args.hidden = hidden;
    kernels_.combine(args);
  });
}

void CpuOps::Add(float* x, const float* y, int64_t n) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  constexpr int64_t kStep = 16384;
  ForEach(static_cast<int32_t>((n + kStep - 1) / kStep), kStep / 4.0, [&](int32_t i, int32_t) {
    kernels_.add(x + i * kStep, y + i * kStep, std::min(kStep, n - i * kStep));
  });
}

void CpuOps::Scale(float* x, float factor, int64_t n) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  constexpr int64_t kStep = 16384;
  ForEach(static_cast<int32_t>((n + kStep - 1) / kStep), kStep / 4.0, [&](int32_t i, int32_t) {
    kernels_.scale(x + i * kStep, factor, std::min(kStep, n - i * kStep));
  });
}

void CpuOps::Clamp(float* x, float limit, int64_t n) {
  const StreamProgress::Work work(progress_, StreamKind::kCompute);
  constexpr int64_t kStep = 16384;
  ForEach(static_cast<int32_t>((n + kStep - 1) / kStep), kStep / 4.0, [&](int32_t i, int32_t) {
    kernels_.clamp(x + i * kStep, limit, std::min(kStep, n - i * kStep));
  });
}

}  // namespace expertflow::cpu
