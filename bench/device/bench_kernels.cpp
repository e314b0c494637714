// CPU kernels and copies beside what the machine and the usual libraries can do, in one run:
//   read          plain reading of memory, the limit of a GEMV that streams its weights
//   ours_bf16     Linear with bf16 weights (ours_int8, ours_int4: quantised, scales included; with
//                 --activations=int8 multiplied as integers); openblas and onednn are the same
//                 product with f32 weights
//   prefill_layer all products of one layer at 512 tokens
//   copy, memcpy  17 MB blocks over the transfer stream, and by memcpy
// Every arm uses as many threads (copies: one). Weights rotate through kWeightBytes of memory, so
// that no arm finds them in a cache. The CPU column is the time of all threads together: on a busy
// machine it says more than the clock.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <fmt/core.h>
#include <omp.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/ops.h"

namespace expertflow {
namespace {

constexpr size_t kWeightBytes = size_t{400} << 20;
constexpr size_t kBlockBytes = 17'301'504;  // one bf16 expert of 3 * 2048 * 1408 weights

struct Shape {
  int32_t cols, rows;
};
constexpr Shape kShapes[] = {{2048, 1408}, {1408, 2048}, {2048, 5632}, {5632, 2048}, {2048, 2048}};
constexpr int32_t kBatches[] = {1, 16, 34, 64, 512};

std::string kernels = "auto";   // --kernels=NAME
int32_t threads_per_arm = 2;    // --threads=N
bool int8_activations = false;  // --activations=int8

Device& TestDevice() {
  static const std::unique_ptr<Device> device = [] {
    auto created = CreateCpuDevice(
        {.threads = threads_per_arm, .kernels = kernels, .int8_activations = int8_activations});
    if (!created.ok()) {
      std::fprintf(stderr, "%s\n", created.status().ToString().c_str());
      std::exit(1);
    }
    return std::move(created).value();
  }();
  return *device;
}

// Written once, shared by all arms: small values in both bf16 and f32.
std::byte* Memory() {
  static const std::unique_ptr<DeviceAllocation> memory = [] {
    auto allocated = TestDevice().Allocate(kWeightBytes);
    if (!allocated.ok()) {
      std::fprintf(stderr, "%s\n", allocated.status().ToString().c_str());
      std::exit(1);
    }
    auto* words = reinterpret_cast<uint32_t*>((*allocated)->data());
    for (size_t i = 0; i < kWeightBytes / 4; ++i) {
      words[i] = 0x3c3c3c3cu + static_cast<uint32_t>(i * 2654435761u >> 7 & 0x003f003fu);
    }
    return std::move(allocated).value();
  }();
  return memory->data();
}

// Sums `bytes` at `data` as 64-bit integers; the attribute is for this benchmark only.
__attribute__((target("avx2"), optimize("O3"))) uint64_t Sum(const std::byte* data, size_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sums[16] = {};
  for (size_t i = 0; i + 16 <= bytes / 8; i += 16) {
    for (size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
}

void Read(benchmark::State& state) {
  const std::byte* memory = Memory();
  const auto count = static_cast<size_t>(threads_per_arm);
  const size_t share = kWeightBytes / count;
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (size_t t = 1; t < count; ++t) {
      threads.emplace_back([=] { benchmark::DoNotOptimize(Sum(memory + t * share, share)); });
    }
    benchmark::DoNotOptimize(Sum(memory, share));
    for (std::thread& thread : threads) thread.join();
  }
  state.SetBytesProcessed(static_cast<int64_t>(kWeightBytes) * state.iterations());
}

// The next of the matrices of `bytes` that fit into Memory().
class Rotation {
 public:
  explicit Rotation(size_t bytes) : bytes_(bytes), count_(kWeightBytes / bytes) {}
  std::byte* Next() { return Memory() + bytes_ * (next_++ % count_); }

 private:
  size_t bytes_;
  size_t count_;
  size_t next_ = 0;
};

size_t Elements(int32_t rows, int32_t cols) {
  return static_cast<size_t>(rows) * static_cast<size_t>(cols);
}

void CountProduct(benchmark::State& state, const Shape& shape, int32_t m, DType dtype) {
  const double weights = double{1} * shape.cols * shape.rows;
  const auto total = [&](double each) {
    return benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["FLOP/s"] = total(2 * weights * m);
  state.counters["weight_bytes/s"] =
      total(static_cast<double>(MatrixBytes(dtype, Elements(shape.rows, shape.cols))));
}

// A product of one shape, by each library: Run() multiplies with the next weights.
template <DType kType>
class OurProduct {
 public:
  static constexpr DType kWeights = kType;
  OurProduct(Shape shape, int32_t m)
      : shape_(shape),
        m_(m),
        x_(Elements(m, shape.cols), 0.5f),
        out_(Elements(m, shape.rows)),
        weights_(MatrixBytes(kType, Elements(shape.rows, shape.cols))) {}
  void Run() {
    LinearJob job;
    job.weight = {weights_.Next(), kType, shape_.rows, shape_.cols};
    job.x = x_.data();
    job.out = out_.data();
    TestDevice().ops().Linear({&job, 1}, m_);
  }

 private:
  Shape shape_;
  int32_t m_;
  std::vector<float> x_;
  std::vector<float> out_;
  Rotation weights_;
};

class OpenBlasProduct {
 public:
  static constexpr DType kWeights = DType::kF32;
  OpenBlasProduct(Shape shape, int32_t m)
      : shape_(shape),
        m_(m),
        x_(Elements(m, shape.cols), 0.5f),
        out_(Elements(m, shape.rows)),
        weights_(MatrixBytes(kWeights, Elements(shape.rows, shape.cols))) {}
  void Run() {
    const auto* w = reinterpret_cast<const float*>(weights_.Next());
    if (m_ == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, shape_.rows, shape_.cols, 1, w, shape_.cols,
                  x_.data(), 1, 0, out_.data(), 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m_, shape_.rows, shape_.cols, 1,
                  x_.data(), shape_.cols, w, shape_.cols, 0, out_.data(), shape_.rows);
    }
  }

 private:
  Shape shape_;
  int32_t m_;
  std::vector<float> x_;
  std::vector<float> out_;
  Rotation weights_;
};

class OneDnnProduct {
 public:
  static constexpr DType kWeights = DType::kF32;
  OneDnnProduct(Shape shape, int32_t m)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        x_(Elements(m, shape.cols), 0.5f),
        out_(Elements(m, shape.rows)),
        weights_(MatrixBytes(kWeights, Elements(shape.rows, shape.cols))),
        x_desc_({m, shape.cols}, kF32, dnnl::memory::format_tag::ab),
        w_desc_({shape.cols, shape.rows}, kF32, dnnl::memory::format_tag::ba),
        out_desc_({m, shape.rows}, kF32, dnnl::memory::format_tag::ab),
        product_(dnnl::matmul::primitive_desc(dnnl::matmul::desc(x_desc_, w_desc_, out_desc_),
                                              engine_)) {}
  void Run() {
    dnnl::memory x(x_desc_, engine_, x_.data());
    dnnl::memory w(w_desc_, engine_, weights_.Next());
    dnnl::memory out(out_desc_, engine_, out_.data());
    product_.execute(stream_, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, out}});
    stream_.wait();
  }

 private:
  static constexpr auto kF32 = dnnl::memory::data_type::f32;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<float> x_;
  std::vector<float> out_;
  Rotation weights_;
  dnnl::memory::desc x_desc_, w_desc_, out_desc_;
  dnnl::matmul product_;
};

template <typename Product>
void OneProduct(benchmark::State& state, Shape shape, int32_t m) {
  Product product(shape, m);
  for (auto _ : state) product.Run();
  CountProduct(state, shape, m, Product::kWeights);
}

// All matrix products of one layer of Qwen1.5-MoE-A2.7B for a prompt of 512 tokens, its 4 * 512
// expert rows spread evenly over 60 experts.
struct LayerProduct {
  Shape shape;
  int32_t m;
  int32_t count;
};
constexpr LayerProduct kPrefillLayer[] = {{{2048, 2048}, 512, 4},
                                          {{2048, 5632}, 512, 2},
                                          {{5632, 2048}, 512, 1},
                                          {{2048, 1408}, 34, 120},
                                          {{1408, 2048}, 34, 60}};

template <typename Product>
void PrefillLayer(benchmark::State& state) {
  std::vector<Product> products;
  double flop = 0;
  for (const LayerProduct& each : kPrefillLayer) {
    products.emplace_back(each.shape, each.m);
    flop += 2.0 * each.count * each.m * each.shape.cols * each.shape.rows;
  }
  for (auto _ : state) {
    for (size_t i = 0; i < products.size(); ++i) {
      for (int32_t n = 0; n < kPrefillLayer[i].count; ++n) products[i].Run();
    }
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(flop, benchmark::Counter::kIsIterationInvariantRate);
}

void CopyBlocks(benchmark::State& state, bool by_device) {
  auto arena = TestDevice().Allocate(8 * kBlockBytes);
  if (!arena.ok()) return state.SkipWithError(arena.status().ToString().c_str());
  Rotation source(kBlockBytes);
  size_t slot = 0;
  for (auto _ : state) {
    std::byte* to = (*arena)->data() + kBlockBytes * (slot++ % 8);
    if (by_device) {
      const Status copied =
          TestDevice().CopyToDevice(StreamKind::kTransfer, to, source.Next(), kBlockBytes);
      if (!copied.ok()) return state.SkipWithError(copied.ToString().c_str());
    } else {
      std::memcpy(to, source.Next(), kBlockBytes);
      benchmark::ClobberMemory();
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(kBlockBytes) * state.iterations());
}

// How much of an emulated 4 GB/s link back-to-back chunks of 1 MiB keep in use.
void EmulatedLink(benchmark::State& state) {
  CpuDeviceOptions options;
  options.threads = 1;
  options.link.bytes_per_second = 4'000'000'000;
  options.link.latency_ns = 10'000;
  const auto device = CreateCpuDevice(options);
  if (!device.ok()) return state.SkipWithError(device.status().ToString().c_str());
  std::vector<std::byte> to(1 << 20);
  Rotation source(to.size());
  int64_t wall_ns = -NowNs();
  for (auto _ : state) {
    const Status copied =
        (*device)->CopyToDevice(StreamKind::kTransfer, to.data(), source.Next(), to.size());
    if (!copied.ok()) return state.SkipWithError(copied.ToString().c_str());
  }
  wall_ns += NowNs();
  state.SetBytesProcessed(static_cast<int64_t>(to.size()) * state.iterations());
  state.counters["link_in_use"] =
      static_cast<double>((*device)->transfer_counters().busy_ns) / static_cast<double>(wall_ns);
}

void Register() {
  benchmark::RegisterBenchmark("read", Read)->MeasureProcessCPUTime()->UseRealTime();
  for (const Shape& shape : kShapes) {
    for (int32_t m : kBatches) {
      const std::string name = fmt::format("/{}->{}/m:{}", shape.cols, shape.rows, m);
      for (const auto& [arm, run] :
           {std::pair("ours_bf16", &OneProduct<OurProduct<DType::kBF16>>),
            std::pair("ours_int8", &OneProduct<OurProduct<DType::kInt8>>),
            std::pair("ours_int4", &OneProduct<OurProduct<DType::kInt4>>),
            std::pair("ours_uint4", &OneProduct<OurProduct<DType::kUInt4>>),
            std::pair("ours_mxfp4", &OneProduct<OurProduct<DType::kMxfp4>>),
            std::pair("ours_fp8", &OneProduct<OurProduct<DType::kFp8>>),
            std::pair("ours_q4_1", &OneProduct<OurProduct<DType::kQ4_1>>),
            std::pair("ours_q5_1", &OneProduct<OurProduct<DType::kQ5_1>>),
            std::pair("ours_q4_k", &OneProduct<OurProduct<DType::kQ4K>>),
            std::pair("ours_q5_k", &OneProduct<OurProduct<DType::kQ5K>>),
            std::pair("ours_q6_k", &OneProduct<OurProduct<DType::kQ6K>>)}) {
        const bool whole_blocks = shape.cols % 256 == 0;
        if (std::string_view(arm).ends_with("_k") && !whole_blocks) continue;
        benchmark::RegisterBenchmark((arm + name).c_str(), run, shape, m)
            ->MeasureProcessCPUTime()
            ->UseRealTime();
      }
      benchmark::RegisterBenchmark(("openblas_f32" + name).c_str(), OneProduct<OpenBlasProduct>,
                                   shape, m)
          ->MeasureProcessCPUTime()
          ->UseRealTime();
      benchmark::RegisterBenchmark(("onednn_f32" + name).c_str(), OneProduct<OneDnnProduct>, shape,
                                   m)
          ->MeasureProcessCPUTime()
          ->UseRealTime();
    }
  }
  for (const auto& [name, run] :
       {std::pair("prefill_layer/ours_int8", &PrefillLayer<OurProduct<DType::kInt8>>),
        std::pair("prefill_layer/ours_int4", &PrefillLayer<OurProduct<DType::kInt4>>),
        std::pair("prefill_layer/ours_bf16", &PrefillLayer<OurProduct<DType::kBF16>>),
        std::pair("prefill_layer/openblas_f32", &PrefillLayer<OpenBlasProduct>),
        std::pair("prefill_layer/onednn_f32", &PrefillLayer<OneDnnProduct>)}) {
    benchmark::RegisterBenchmark(name, run)->MeasureProcessCPUTime()->UseRealTime();
  }
  benchmark::RegisterBenchmark("copy_17MB/device", CopyBlocks, true)
      ->MeasureProcessCPUTime()
      ->UseRealTime();
  benchmark::RegisterBenchmark("copy_17MB/memcpy", CopyBlocks, false)
      ->MeasureProcessCPUTime()
      ->UseRealTime();
  benchmark::RegisterBenchmark("copy_1MiB/emulated_4GB/s", EmulatedLink)
      ->MeasureProcessCPUTime()
      ->UseRealTime();
}

}  // namespace
}  // namespace expertflow

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string_view value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("--kernels=")) {
      expertflow::kernels = value;
    } else if (argument.starts_with("--threads=") && std::atoi(value.data()) > 0) {
      expertflow::threads_per_arm = std::atoi(value.data());
    } else if (argument == "--activations=int8") {
      expertflow::int8_activations = true;
    } else {
      std::fprintf(stderr,
                   "'%s': expected --kernels=NAME, --threads=N, --activations=int8 or a "
                   "--benchmark_ option\n",
                   argv[i]);
      return 2;
    }
  }
  omp_set_num_threads(expertflow::threads_per_arm);  // oneDNN's runtime
  openblas_set_num_threads(expertflow::threads_per_arm);
  benchmark::AddCustomContext("kernels", expertflow::TestDevice().properties().kernels);
  benchmark::AddCustomContext("arithmetic", expertflow::TestDevice().properties().arithmetic);
  benchmark::AddCustomContext("threads_per_arm", std::to_string(expertflow::threads_per_arm));
  benchmark::AddCustomContext("openblas", openblas_get_corename());
  expertflow::Memory();  // not in the first arm that runs
  expertflow::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
