// The ops of a CPU device (contract in device/ops.h): each call cuts its work into chunks and runs
// them on the thread pool; small work runs on the caller alone, since waking other threads would
// cost more. Neither choice can change a result: a dot product is never split.
//
// Driven by one thread at a time, like the compute stream it stands for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/kernels/kernel_table.h"
#include "device/cpu/scratch.h"
#include "device/cpu/stream_progress.h"
#include "device/cpu/thread_pool.h"
#include "device/ops.h"

namespace expertflow::cpu {

class CpuOps : public Ops {
 public:
  // All must outlive the ops.
  CpuOps(const KernelTable& kernels, bool integer_products, ThreadPool& pool,
         StreamProgress& progress);

  void Embed(const WeightMatrix& table, std::span<const int32_t> ids, float* out) override;
  void RmsNorm(const float* x, const WeightVector& weight, float eps, int32_t m,
               float* out) override;
  void Linear(std::span<const LinearJob> jobs, int32_t m) override;
  void LinearTransposed(std::span<const LinearJob> jobs, int32_t m) override;
  void Rope(float* x, int32_t heads, int32_t head_dim, int32_t rotary_dim, RopePairs pairs,
            std::span<const AttentionRow> rows, const float* cos_sin) override;
  void StoreKv(const KvLayer& kv, const float* keys, const float* values,
               std::span<const AttentionRow> rows) override;
  void Attention(const AttentionShape& shape, const KvLayer& kv, const float* q,
                 std::span<const AttentionRow> rows, float* out) override;
  void RouteTopK(const float* logits, int32_t m, const RouterShape& router, int32_t* ids,
                 float* weights) override;
  void ExpertMlp(std::span<const ExpertJob> jobs, const float* x, float* out) override;
  void Mlp(const MlpWeights& weights, const float* x, int32_t m, float* out) override;
  void CombineExperts(const float* expert_out, const float* weights, int32_t m, int32_t k,
                      int32_t hidden, const float* shared_out, const float* shared_gate,
                      float* residual) override;
  void Add(float* x, const float* y, int64_t n) override;
  void Scale(float* x, float factor, int64_t n) override;
  void Clamp(float* x, float limit, int64_t n) override;

 private:
  // One matrix product, or a gate and up pair whose joined result replaces gate's.
  struct Product {
    MatmulArgs args;
    bool joins = false;
    Activation activation;
    MatmulArgs up;
  };
  // Rows [begin, end) of products_[product].
  struct Chunk {
    int32_t product = 0;
    int32_t begin = 0;
    int32_t end = 0;
  };
  struct AttentionTask {
    int32_t row = 0;
    int32_t kv_head = 0;
  };
  // Some rows of one MLP: those at in[i] go to out[i].
  struct MlpPart {
    const MlpWeights* weights = nullptr;
    int32_t first = 0;  // into in_rows_ and out_rows_
    int32_t m = 0;
  };

  // Runs body(i) for i in [0, count), spread over the threads when it is worth it.
  template <typename Body>
  void ForEach(int32_t count, double ns_each, const Body& body);
  // Null: gemv.
  const PackedKernels* PackedFor(const MatmulArgs& args) const;
  void RunProducts();
  // Packs the activations of all products to `packed`, each once; null: only counts the floats.
  int64_t PackProducts(float* packed);
  void CutProducts();
  void RunProduct(const Product& product, int32_t begin, int32_t end, int32_t thread);
  void RunMlpParts();
  void OrderAttention(std::span<const AttentionRow> rows, int32_t kv_heads);
  // `weights` as float32, valid until the next call.
  const float* Raise(const WeightVector& weights);

  const KernelTable& kernels_;
  const bool integer_products_;
  ThreadPool& pool_;
  StreamProgress& progress_;

  // Reused from call to call.
  std::vector<Product> products_;
  std::vector<Chunk> chunks_;
  std::vector<MlpPart> parts_;
  std::vector<AttentionTask> attention_tasks_;
  std::vector<const float*> in_rows_;
  std::vector<float*> out_rows_;
  std::vector<float*> gate_rows_;
  std::vector<const float*> down_in_rows_;
  std::vector<float*> up_rows_;
  Scratch packed_;
  Scratch intermediate_;
  Scratch raised_;
  std::vector<Scratch> thread_scratch_;
};

}  // namespace expertflow::cpu
